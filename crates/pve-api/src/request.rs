//! A call as a value: what is sent, without sending it.

use std::fmt;
use std::marker::PhantomData;

use http::Method;
use mainstay_net::Secret;
use serde::de::DeserializeOwned;

use crate::encode;
use crate::error::Error;
use crate::value::Host;

/// Parameters whose values must not be printed.
const SECRET_PARAMS: [&str; 5] = ["cipassword", "otp", "password", "tfa-challenge", "keys"];

/// Method and path of a call, as errors and traces name it. It never holds a parameter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallName {
    method: &'static str,
    path: String,
}

impl CallName {
    pub fn method(&self) -> &str {
        self.method
    }

    /// Below `/api2/json`.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl fmt::Display for CallName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

/// A request: method, path and parameters.
#[derive(Debug, Clone)]
pub struct Request {
    verb: Verb,
    template: &'static str,
    path: String,
    host: Option<Host>,
    params: Vec<(String, Param)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Post,
    Put,
    Delete,
}

impl Verb {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
        }
    }
}

#[derive(Debug, Clone)]
enum Param {
    Plain(String),
    Secret(Secret<String>),
}

impl Param {
    fn text(&self) -> &str {
        match self {
            Self::Plain(text) => text,
            Self::Secret(secret) => secret.expose(),
        }
    }
}

impl Request {
    pub(crate) fn get(template: &'static str, segments: &[&dyn fmt::Display]) -> Self {
        Self::new(Verb::Get, template, segments)
    }

    pub(crate) fn post(template: &'static str, segments: &[&dyn fmt::Display]) -> Self {
        Self::new(Verb::Post, template, segments)
    }

    pub(crate) fn put(template: &'static str, segments: &[&dyn fmt::Display]) -> Self {
        Self::new(Verb::Put, template, segments)
    }

    pub(crate) fn delete(template: &'static str, segments: &[&dyn fmt::Display]) -> Self {
        Self::new(Verb::Delete, template, segments)
    }

    fn new(verb: Verb, template: &'static str, segments: &[&dyn fmt::Display]) -> Self {
        let mut values = segments.iter();
        let mut path = String::new();
        let mut host = None;
        for segment in template.split('/').skip(1) {
            path.push('/');
            if segment.starts_with('{') {
                let value = values.next().expect("a value for each segment").to_string();
                path.push_str(&encode::component(&value));
                if segment == "{node}" {
                    host = value.parse().ok();
                }
            } else {
                path.push_str(segment);
            }
        }
        assert!(values.next().is_none(), "more values than segments in {template}");
        Self {
            verb,
            template,
            path,
            host,
            params: Vec::new(),
        }
    }

    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Self {
        let text = value.to_string();
        let param = if SECRET_PARAMS.contains(&name) {
            Param::Secret(text.into())
        } else {
            Param::Plain(text)
        };
        self.params.push((name.to_owned(), param));
        self
    }

    pub(crate) fn with_opt(self, name: &str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// A flag that is left out when it is off, since off is PVE's default.
    pub(crate) fn with_flag(self, name: &str, on: bool) -> Self {
        if on { self.with(name, 1) } else { self }
    }

    pub(crate) fn with_all<K: AsRef<str>, V: ToString>(self, pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        pairs
            .into_iter()
            .fold(self, |request, (name, value)| request.with(name.as_ref(), value))
    }

    /// A comma list, left out when it is empty.
    pub(crate) fn with_list<T: ToString>(self, name: &str, items: impl IntoIterator<Item = T>) -> Self {
        let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
        if items.is_empty() {
            self
        } else {
            self.with(name, items.join(","))
        }
    }

    pub fn method(&self) -> Method {
        match self.verb {
            Verb::Get => Method::GET,
            Verb::Post => Method::POST,
            Verb::Put => Method::PUT,
            Verb::Delete => Method::DELETE,
        }
    }

    /// The path with its parameters by name: `/nodes/{node}/qemu/{vmid}`.
    pub fn template(&self) -> &'static str {
        self.template
    }

    /// Below `/api2/json`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The host that carries the call out, wherever it is sent to.
    pub fn host(&self) -> Option<&Host> {
        self.host.as_ref()
    }

    /// Whether sending it twice does no more than sending it once. All else may start something that has no equal.
    pub fn is_read(&self) -> bool {
        self.verb == Verb::Get
    }

    /// Whether the host's root daemon carries it out, which has few and blocking workers. The rest its web server answers itself.
    pub fn is_protected(&self) -> bool {
        let open = [
            "/nodes/{node}/network",
            "/nodes/{node}/qemu/{vmid}/cloudinit/dump",
            "/nodes/{node}/qemu/{vmid}/config",
            "/nodes/{node}/qemu/{vmid}/pending",
            "/nodes/{node}/query-url-metadata",
            "/nodes/{node}/status",
            "/nodes/{node}/tasks",
            "/nodes/{node}/version",
        ];
        !(self.verb == Verb::Get && open.contains(&self.template))
    }

    pub fn name(&self) -> CallName {
        CallName {
            method: self.verb.name(),
            path: self.path.clone(),
        }
    }

    /// The value of a parameter, in the path or not. A user's realm counts as one.
    pub(crate) fn value_of(&self, name: &str) -> Option<String> {
        let in_path = self.template.split('/').zip(self.path.split('/')).find_map(|(known, value)| {
            let known = known.strip_prefix('{')?.strip_suffix('}')?;
            (known == name).then(|| encode::decode_component(value))
        });
        let given = || {
            self.params
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, param)| param.text().to_owned())
        };
        let realm = || Some(self.value_of("userid")?.rsplit_once('@')?.1.to_owned());
        in_path
            .flatten()
            .or_else(given)
            .or_else(|| if name == "realm" { realm() } else { None })
    }

    pub fn param_names(&self) -> impl Iterator<Item = &str> {
        self.params.iter().map(|(name, _)| name.as_str())
    }

    /// Path and query. PVE refuses a body on GET and DELETE, so their parameters go here.
    pub fn target(&self) -> String {
        let encoded = self.encoded();
        match self.verb {
            Verb::Get | Verb::Delete if !encoded.is_empty() => format!("/api2/json{}?{encoded}", self.path),
            _ => format!("/api2/json{}", self.path),
        }
    }

    /// The form body, `None` where there is none.
    pub fn form(&self) -> Option<String> {
        matches!(self.verb, Verb::Post | Verb::Put).then(|| self.encoded())
    }

    fn encoded(&self) -> String {
        let pairs = self
            .params
            .iter()
            .map(|(name, param)| format!("{}={}", encode::component(name), encode::component(param.text())));
        pairs.collect::<Vec<_>>().join("&")
    }
}

/// A request together with what its answer means.
pub struct Call<T> {
    pub request: Request,
    decode: fn(&[u8]) -> Result<T, serde_json::Error>,
    answer: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Call<T> {
    pub(crate) fn new(request: Request) -> Self {
        Self {
            request,
            decode: decode_data,
            answer: PhantomData,
        }
    }
}

impl<T: DeserializeOwned> Call<Page<T>> {
    pub(crate) fn paged(request: Request) -> Self {
        Self {
            request,
            decode: decode_page,
            answer: PhantomData,
        }
    }
}

impl<T> Call<T> {
    /// What an answer says. A status of 200 is the only one that means success.
    pub fn decode(&self, status: u16, reason: &str, body: &[u8]) -> Result<T, Error> {
        if status != 200 {
            return Err(Error::from_answer(&self.request, status, reason, body));
        }
        (self.decode)(body).map_err(|source| Error::Decode {
            call: self.request.name(),
            source,
        })
    }
}

impl<T> fmt::Debug for Call<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.request.fmt(f)
    }
}

/// Part of a list, and how long the whole is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub total: u64,
}

/// An answer whose content says nothing: PVE sends null, and here and there the changed object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done;

impl<'de> serde::Deserialize<'de> for Done {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

#[derive(serde::Deserialize)]
struct Envelope<T> {
    data: T,
    #[serde(default, deserialize_with = "crate::value::loose::opt_unsigned")]
    total: Option<u64>,
}

fn decode_data<T: DeserializeOwned>(body: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice::<Envelope<T>>(body).map(|envelope| envelope.data)
}

fn decode_page<T: DeserializeOwned>(body: &[u8]) -> Result<Page<T>, serde_json::Error> {
    let envelope: Envelope<Vec<T>> = serde_json::from_slice(body)?;
    let total = envelope.total.unwrap_or(envelope.data.len() as u64);
    Ok(Page {
        items: envelope.data,
        total,
    })
}

#[cfg(test)]
mod tests {
    use super::{Call, Done, Page, Request};

    #[test]
    fn parameters_of_a_delete_go_into_the_query() {
        let request = Request::delete("/nodes/{node}/qemu/{vmid}", &[&"pve1", &100]).with_flag("purge", true);
        assert_eq!(request.target(), "/api2/json/nodes/pve1/qemu/100?purge=1");
        assert_eq!(request.form(), None);
        assert_eq!(request.host().unwrap().as_str(), "pve1");
    }

    #[test]
    fn values_of_a_form_are_encoded_fully() {
        let request = Request::put("/pools", &[])
            .with("net0", "virtio=AA:BB,bridge=vmbr0")
            .with("boot", "order=a;b");
        assert_eq!(
            request.form().unwrap(),
            "net0=virtio%3DAA%3ABB%2Cbridge%3Dvmbr0&boot=order%3Da%3Bb"
        );
        assert_eq!(request.target(), "/api2/json/pools");
    }

    #[test]
    fn a_secret_parameter_is_sent_and_not_printed() {
        let request = Request::post("/access/ticket", &[])
            .with("username", "root@pam")
            .with("password", "hunter2");
        assert!(request.form().unwrap().contains("hunter2"));
        assert!(!format!("{request:?} {}", request.name()).contains("hunter2"));
    }

    #[test]
    fn a_page_knows_how_long_the_whole_is() {
        let call = Call::<Page<u8>>::paged(Request::get("/x", &[]));
        assert_eq!(
            call.decode(200, "OK", br#"{"data":[1,2],"total":"7"}"#).unwrap(),
            Page {
                items: vec![1, 2],
                total: 7
            }
        );
        assert_eq!(call.decode(200, "OK", br#"{"data":[1,2]}"#).unwrap().total, 2);
    }

    #[test]
    fn anything_will_do_where_nothing_is_expected() {
        let call = Call::<Done>::new(Request::put("/x", &[]));
        for body in ["{\"data\":null}", "{\"data\":{\"a\":1}}", "{\"data\":\"UPID\"}"] {
            assert_eq!(call.decode(200, "OK", body.as_bytes()).unwrap(), Done);
        }
        assert!(call.decode(200, "OK", b"<html>").is_err());
    }
}
