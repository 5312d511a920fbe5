//! How an answer is wrapped: `{"data":…}`, or always-200 with `success` for the browser's format.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use serde_json::{Map, Value, json};

use super::wire::{Request, Response};
use crate::datacenter::Reply;
use crate::die::Die;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Json,
    ExtJs,
}

impl Format {
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "json" => Some(Self::Json),
            "extjs" => Some(Self::ExtJs),
            _ => None,
        }
    }
}

/// Wraps an answer. Releases before 8.4 put the message of an error into the status line only.
pub fn render(format: Format, answer: Result<Reply, Die>, with_message: bool) -> Response {
    match answer {
        Ok(Reply { raw: Some(response), .. }) => response,
        Ok(reply) => {
            let mut body = Map::new();
            body.insert("data".into(), reply.data);
            if let Some(total) = reply.total {
                body.insert("total".into(), json!(total));
            }
            if format == Format::ExtJs {
                body.insert("success".into(), json!(1));
            }
            json_response(200, "OK", body)
        }
        Err(die) if die.bare && die.status() == 500 => {
            let text = format!("{}\n", die.message);
            Response::plain(500, first_line(&die.message), text)
        }
        Err(die) => render_refusal(format, &die, with_message),
    }
}

fn first_line(text: &str) -> &str {
    text.split('\n').next().unwrap_or_default()
}

fn render_refusal(format: Format, die: &Die, with_message: bool) -> Response {
    let mut body = Map::new();
    body.insert("data".into(), Value::Null);
    if with_message || format == Format::ExtJs {
        let end = if die.bare { "" } else { "\n" };
        body.insert("message".into(), json!(format!("{}{end}", die.message)));
    }
    if !die.errors.is_empty() {
        body.insert("errors".into(), json!(die.errors));
    }
    if format == Format::ExtJs {
        body.insert("success".into(), json!(0));
        let status = if die.code.is_some() {
            json!(die.status().to_string())
        } else {
            json!(die.status())
        };
        body.insert("status".into(), status);
        return json_response(200, "OK", body);
    }
    json_response(die.status(), first_line(&die.message), body)
}

fn json_response(status: u16, reason: &str, body: Map<String, Value>) -> Response {
    let text = serde_json::to_vec(&Value::Object(body)).unwrap_or_default();
    let headers = vec![("Content-Type", "application/json;charset=UTF-8".to_string())];
    Response {
        status,
        reason: reason.into(),
        headers,
        body: Bytes::from(text),
        bare: false,
    }
}

/// Compresses what is longer than a kilobyte, if the client accepts that.
pub(super) fn compress(request: &Request, mut response: Response) -> Response {
    let accepts = |name: &str| request.header("accept-encoding").is_some_and(|a| a.contains(name));
    if response.body.len() <= 1024 || response.headers.iter().any(|(n, _)| *n == "Content-Encoding") {
        return response;
    }
    let (name, packed) = if accepts("gzip") {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        ("gzip", encoder.write_all(&response.body).and_then(|()| encoder.finish()))
    } else if accepts("deflate") {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        ("deflate", encoder.write_all(&response.body).and_then(|()| encoder.finish()))
    } else {
        return response;
    };
    if let Ok(bytes) = packed {
        response.body = bytes.into();
        response.headers.push(("Content-Encoding", name.into()));
    }
    response
}
