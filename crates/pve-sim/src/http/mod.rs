//! pveproxy's own HTTP/1.1: requests, parameters, answers, limits.

mod body;
mod envelope;
mod json;
mod multipart;
mod serve;
mod wire;

pub use body::{decode_form, decode_json, unescape};
pub use envelope::{Format, render};
pub use multipart::{Form, content_type, parse as parse_upload};
pub use serve::{Serving, serve};
pub use wire::{Incoming, Manner, READ_TIMEOUT, Request, Response, read_request, write_response};
