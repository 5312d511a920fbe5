//! Who we are to PVE.

use std::str::FromStr;
use std::time::Duration;

use http::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderName, HeaderValue};
use mainstay_net::Secret;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Client;
use crate::calls::access::{self, Ticket};
use crate::encode;
use crate::error::Error;
use crate::request::Call;
use crate::value::ValueError;

/// A ticket lives for two hours and may be renewed while it does.
const RENEW_AFTER: Duration = Duration::from_secs(3600);
const DEAD_AFTER: Duration = Duration::from_secs(7200 - 60);

const CSRF: HeaderName = HeaderName::from_static("csrfpreventiontoken");

/// How to log in.
#[derive(Clone, Debug)]
pub enum Login {
    Token {
        id: String,
        secret: Secret<String>,
    },
    Password {
        user: String,
        password: Secret<String>,
        code: Option<Secret<String>>,
    },
}

impl Login {
    /// Whose rights count: `user@realm!token` or `user@realm`.
    pub fn principal(&self) -> &str {
        match self {
            Self::Token { id, .. } => id,
            Self::Password { user, .. } => user,
        }
    }
}

impl FromStr for Login {
    type Err = ValueError;

    /// Reads an API token as PVE and other tools write it: `user@realm!token=secret`.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        // The text is most likely a token with a slip in it: it is not repeated.
        let error = || ValueError::new("an API token of the form user@realm!name=secret", "***");
        let text = text.trim();
        let text = text.strip_prefix("PVEAPIToken=").unwrap_or(text);
        let (id, secret) = text.split_once('=').ok_or_else(error)?;
        let (user, name) = id.split_once('!').ok_or_else(error)?;
        let visible = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_graphic());
        if !user.contains('@') || ![user, name, secret].into_iter().all(visible) {
            return Err(error());
        }
        Ok(Self::Token {
            id: id.to_owned(),
            secret: secret.into(),
        })
    }
}

/// The login and what came of it.
pub(super) struct Session {
    login: Login,
    held: Mutex<Option<Held>>,
}

struct Held {
    ticket: Ticket,
    since: Instant,
}

/// Headers that prove who we are, and when the ticket in them was issued.
pub(super) struct Authorised {
    pub(super) headers: HeaderMap,
    since: Option<Instant>,
}

impl Session {
    pub(super) fn new(login: Login) -> Self {
        Self {
            login,
            held: Mutex::new(None),
        }
    }

    pub(super) fn principal(&self) -> &str {
        self.login.principal()
    }

    pub(super) async fn headers(&self, client: &Client) -> Result<Authorised, Error> {
        match &self.login {
            Login::Token { id, secret } => {
                let value = sensitive(&format!("PVEAPIToken={id}={}", secret.expose()));
                Ok(Authorised {
                    headers: HeaderMap::from_iter([(AUTHORIZATION, value)]),
                    since: None,
                })
            }
            Login::Password { .. } => self.ticket_headers(client).await,
        }
    }

    /// Forgets the ticket that was not accepted. `false` when there is nothing else to try.
    pub(super) async fn expire(&self, refused: &Authorised) -> bool {
        let Some(since) = refused.since else { return false };
        let mut held = self.held.lock().await;
        // Another call may have renewed it meanwhile.
        if held.as_ref().is_some_and(|held| held.since == since) {
            *held = None;
        }
        true
    }

    async fn ticket_headers(&self, client: &Client) -> Result<Authorised, Error> {
        let mut held = self.held.lock().await;
        let fresh = match held.take() {
            Some(held) if held.since.elapsed() < RENEW_AFTER => held,
            old => self.renewed(client, old).await?,
        };
        let cookie = sensitive(&format!("PVEAuthCookie={}", encode::component(fresh.ticket.ticket.expose())));
        let mut headers = HeaderMap::from_iter([(COOKIE, cookie)]);
        if let Some(csrf) = &fresh.ticket.csrf {
            headers.insert(CSRF, sensitive(csrf.expose()));
        }
        let since = Some(fresh.since);
        *held = Some(fresh);
        Ok(Authorised { headers, since })
    }

    /// A ticket that still lives is its own password; one that is refused, or none, needs the real one.
    async fn renewed(&self, client: &Client, old: Option<Held>) -> Result<Held, Error> {
        let Login::Password { user, password, code } = &self.login else {
            unreachable!("tokens need no ticket")
        };
        if let Some(old) = old.filter(|old| old.since.elapsed() < DEAD_AFTER) {
            match ask(client, access::ticket(user, old.ticket.ticket.expose())).await {
                Err(Error::Refused(_)) => {}
                outcome => return outcome.map(Held::now),
            }
        }
        let ticket = ask(client, access::ticket(user, password.expose())).await?;
        match code {
            Some(code) if ticket.need_tfa => ask(client, access::ticket_with_code(user, &ticket.ticket, code)).await,
            // This ticket only opens the second step: every call with it would be refused without a reason.
            None if ticket.need_tfa => Err(Error::second_factor(&access::ticket(user, "").request)),
            _ => Ok(ticket),
        }
        .map(Held::now)
    }
}

/// Logging in twice does no harm, so that a lost answer is no obstacle.
async fn ask(client: &Client, call: Call<Ticket>) -> Result<Ticket, Error> {
    let answer = client.exchange(&call.request, &HeaderMap::new(), true).await?;
    call.decode(answer.status.as_u16(), &answer.reason, &answer.body)
}

impl Held {
    fn now(ticket: Ticket) -> Self {
        Self {
            ticket,
            since: Instant::now(),
        }
    }
}

/// A header value that no log prints. What cannot be one is sent empty, and refused.
fn sensitive(text: &str) -> HeaderValue {
    let mut value = HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""));
    value.set_sensitive(true);
    value
}

#[cfg(test)]
mod tests {
    use super::Login;

    #[test]
    fn a_token_is_read_in_the_forms_the_field_uses() {
        for text in [
            "ops@pve!ms=0af1-22",
            "PVEAPIToken=ops@pve!ms=0af1-22",
            " ops@pve!ms=0af1-22\n",
        ] {
            let login: Login = text.parse().unwrap();
            assert_eq!(login.principal(), "ops@pve!ms");
            assert!(!format!("{login:?}").contains("0af1"));
        }
    }

    #[test]
    fn a_broken_token_is_not_repeated_in_the_error() {
        for text in [
            "canary",
            "ops@pve=canary",
            "ops!x=canary",
            "ops@pve!x canary",
            "ops@pve!=canary",
        ] {
            let error = text.parse::<Login>().unwrap_err();
            assert!(!format!("{error} {error:?}").contains("canary"), "{text}");
        }
    }
}
