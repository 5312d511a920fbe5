//! Who sent a request: API tokens, tickets and their CSRF tokens.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use super::{Access, ROOT};
use crate::die::Die;
use crate::http::Request;

/// Tickets live two hours, and some minutes of clock difference are forgiven.
const LIFETIME: i64 = 2 * 3600;
const GRACE: i64 = 300;

/// The authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    pub user: String,
    pub token: Option<String>,
}

impl Auth {
    pub fn user(user: &str) -> Self {
        Self {
            user: user.into(),
            token: None,
        }
    }

    /// `user@realm` or `user@realm!token`.
    pub fn full(&self) -> String {
        match &self.token {
            Some(token) => format!("{}!{token}", self.user),
            None => self.user.clone(),
        }
    }

    /// Only the password session: root's tokens are not root.
    pub fn is_root(&self) -> bool {
        self.user == ROOT && self.token.is_none()
    }
}

/// What a request brought to prove who sent it.
pub enum Login {
    Token(String),
    Ticket(String),
    Nothing,
}

impl Login {
    /// A cookie wins over the header; in the header a ticket wins over a token.
    pub fn of(request: &Request) -> Self {
        let cookie = request.header("cookie").and_then(|c| value_of(c, "PVEAuthCookie"));
        let header = request.header("authorization").unwrap_or_default();
        if let Some(ticket) = cookie.or_else(|| value_of(header, "PVEAuthCookie")) {
            return Self::Ticket(ticket);
        }
        value_of(header, "PVEAPIToken").map_or(Self::Nothing, Self::Token)
    }
}

/// The value behind `name=` or `name `, up to the next semicolon; an empty one is none.
fn value_of(header: &str, name: &str) -> Option<String> {
    let found = header.match_indices(name).find_map(|(at, _)| {
        let free = at == 0 || header[..at].ends_with(char::is_whitespace);
        let rest = &header[at + name.len()..];
        rest.strip_prefix(['=', ' ']).filter(|_| free)
    });
    let value = crate::http::unescape(found?.split(';').next().unwrap_or_default());
    (!value.is_empty() && value != "0").then_some(value)
}

fn failed() -> Die {
    Die::with_code(401, "Authentication failed!")
}

/// Signs tickets with a key of this datacenter.
#[derive(Clone)]
pub struct Signer([u8; 32]);

impl Signer {
    pub fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    fn sign(&self, text: &str) -> String {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update(text.as_bytes());
        STANDARD.encode(hash.finalize())
    }

    pub fn ticket(&self, user: &str, now: i64) -> String {
        let plain = format!("PVE:{user}:{now:08X}");
        format!("{plain}::{}", self.sign(&plain))
    }

    /// A ticket that only says which second factor is wanted; the user is part of its signature.
    pub fn challenge(&self, user: &str, challenge: &str, now: i64) -> String {
        let plain = format!("PVE:!tfa!{challenge}:{now:08X}");
        format!("{plain}::{}", self.sign(&format!("{plain}:{user}")))
    }

    /// The challenge that a user was given, if it is genuine and young enough.
    pub fn verify_challenge(&self, user: &str, ticket: &str, now: i64) -> Option<String> {
        let (plain, signature) = ticket.rsplit_once("::")?;
        let (data, stamp) = plain.strip_prefix("PVE:!tfa!")?.rsplit_once(':')?;
        let age = now - i64::from_str_radix(stamp, 16).ok()?;
        let genuine = self.sign(&format!("{plain}:{user}")) == signature;
        (genuine && (-GRACE..LIFETIME).contains(&age)).then(|| data.to_string())
    }

    /// The user of a ticket that is genuine and young enough.
    pub fn verify_ticket(&self, ticket: &str, now: i64) -> Option<String> {
        let (plain, signature) = ticket.split_once("::")?;
        let (user, stamp) = plain.strip_prefix("PVE:")?.rsplit_once(':')?;
        let age = now - i64::from_str_radix(stamp, 16).ok()?;
        (self.sign(plain) == signature && (-GRACE..LIFETIME).contains(&age)).then(|| user.to_string())
    }

    pub fn csrf(&self, user: &str, now: i64) -> String {
        let stamp = format!("{now:08X}");
        let signature = self.sign(&format!("{stamp}:{user}"));
        format!("{stamp}:{}", signature.trim_end_matches('='))
    }

    pub fn verify_csrf(&self, token: &str, user: &str, now: i64) -> bool {
        let stamp = token
            .split_once(':')
            .and_then(|(stamp, _)| i64::from_str_radix(stamp, 16).ok());
        stamp.is_some_and(|at| (-GRACE..LIFETIME).contains(&(now - at)) && self.csrf(user, at) == token)
    }
}

impl Access {
    /// Whether a user exists, is enabled and has not expired.
    pub fn is_active(&self, user: &str, now: i64) -> bool {
        self.users
            .get(user)
            .is_some_and(|u| u.enable && (u.expire == 0 || u.expire > now))
    }

    /// The caller behind `user@realm!token=secret`.
    pub fn verify_token(&self, text: &str, now: i64) -> Result<Auth, Die> {
        let (id, secret) = text.split_once('=').ok_or_else(failed)?;
        let (user, name) = id.split_once('!').ok_or_else(failed)?;
        let token = self.users.get(user).and_then(|u| u.tokens.get(name)).ok_or_else(failed)?;
        let alive = self.is_active(user, now) && (token.expire == 0 || token.expire > now);
        if !alive || token.secret != secret {
            return Err(failed());
        }
        Ok(Auth {
            user: user.into(),
            token: Some(name.into()),
        })
    }

    /// The caller behind a ticket.
    pub fn verify_ticket(&self, signer: &Signer, ticket: &str, now: i64) -> Result<Auth, Die> {
        let user = signer.verify_ticket(ticket, now).filter(|u| self.is_active(u, now));
        user.map(|user| Auth::user(&user)).ok_or_else(failed)
    }

    /// Writes need the CSRF token that came with the ticket.
    pub fn verify_csrf(&self, signer: &Signer, auth: &Auth, csrf: Option<&str>, now: i64) -> Result<(), Die> {
        if csrf.is_some_and(|token| signer.verify_csrf(token, &auth.user, now)) {
            return Ok(());
        }
        Err(Die::with_code(401, "Permission denied - invalid csrf token"))
    }
}

#[cfg(test)]
mod tests {
    use super::Signer;

    #[test]
    fn a_challenge_is_good_for_its_user_alone_and_is_no_ticket() {
        let signer = Signer::new([7; 32]);
        let challenge = signer.challenge("a@pve", "{}", 1000);
        assert_eq!(signer.verify_challenge("a@pve", &challenge, 1001).as_deref(), Some("{}"));
        assert_eq!(signer.verify_challenge("b@pve", &challenge, 1001), None);
        assert_eq!(signer.verify_challenge("a@pve", &challenge, 1000 + 7200), None);
        assert_eq!(signer.verify_ticket(&challenge, 1001), None);
    }

    #[test]
    fn a_ticket_is_good_for_two_hours_and_for_its_user() {
        let signer = Signer::new([7; 32]);
        let ticket = signer.ticket("a@pve", 1000);
        assert_eq!(signer.verify_ticket(&ticket, 1000 + 7199).as_deref(), Some("a@pve"));
        assert_eq!(signer.verify_ticket(&ticket, 1000 + 7200), None);
        assert_eq!(Signer::new([8; 32]).verify_ticket(&ticket, 1000), None);
        let csrf = signer.csrf("a@pve", 1000);
        assert!(signer.verify_csrf(&csrf, "a@pve", 1001) && !signer.verify_csrf(&csrf, "b@pve", 1001));
    }
}
