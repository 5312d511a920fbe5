//! The form of an upload. pveproxy reads it with patterns instead of a parser, and what they let through decides:
//! `content`, `checksum-algorithm` and `checksum` in this order, then the file, and nothing else.

use bytes::Bytes;

use super::wire::{Request, Response};

const SERVER: &str = "/usr/share/perl5/PVE/APIServer/AnyEvent.pm";
const FIELDS: [&str; 3] = ["content", "checksum-algorithm", "checksum"];
const DISPOSITION: &[u8] = b"Content-Disposition: ";

/// What an upload's body brought.
#[derive(Debug, Default, PartialEq)]
pub struct Form {
    pub fields: Vec<(&'static str, String)>,
    pub filename: String,
    pub file: Bytes,
}

/// The media type and the boundary, quotes included if it has some.
pub fn content_type(request: &Request) -> (Option<&str>, Option<&str>) {
    let Some(header) = request.header("content-type").filter(|h| !h.is_empty()) else {
        return (None, None);
    };
    let mut parts = header.split([';', ',']).map(str::trim);
    let media = parts.next();
    let boundary = parts.find_map(|part| {
        let value = part.strip_prefix("boundary")?.trim_start().strip_prefix('=')?.trim();
        (!value.is_empty() && !value.contains(char::is_whitespace)).then_some(value)
    });
    (media, boundary)
}

/// Takes a body apart, or says how pveproxy refuses it.
pub fn parse(body: &Bytes, boundary: &str) -> Result<Form, Response> {
    let reader = Reader {
        marker: format!("--{boundary}").into_bytes(),
        body,
    };
    let mut form = Form::default();
    let mut at = reader.delimiter(0).ok_or_else(failed)?.0;
    for name in FIELDS {
        if let Some((value, next)) = reader.field(at, name)? {
            form.fields.push((name, value));
            at = next;
        }
    }
    let (filename, start) = reader.file(at)?.ok_or_else(failed)?;
    form.filename = filename;
    form.file = reader.data(start).ok_or_else(failed)?;
    Ok(form)
}

/// The body ended before the form did.
fn failed() -> Response {
    refuse(format!("upload failed at {SERVER} line 1370.\n"))
}

/// A text with a carriage return in its first line cannot be sent as a reason.
fn refuse(text: String) -> Response {
    let first = text.split('\n').next().unwrap_or_default().to_string();
    if first.contains('\r') {
        return Response::plain(400, "Bad Request", "");
    }
    Response::plain(500, &first, text)
}

struct Reader<'a> {
    marker: Vec<u8>,
    body: &'a Bytes,
}

impl Reader<'_> {
    fn find(&self, needle: &[u8], from: usize) -> Option<usize> {
        let rest = self.body.get(from..)?;
        rest.windows(needle.len()).position(|w| w == needle).map(|at| at + from)
    }

    /// Length of a line end at a place.
    fn newline(&self, at: usize) -> Option<usize> {
        match self.body.get(at..)? {
            [b'\r', b'\n', ..] => Some(2),
            [b'\n', ..] => Some(1),
            _ => None,
        }
    }

    /// The next boundary that opens a part: where it begins and where it ends.
    fn delimiter(&self, mut from: usize) -> Option<(usize, usize)> {
        loop {
            let at = self.find(&self.marker, from)?;
            let end = at + self.marker.len();
            if let Some(length) = self.newline(end) {
                return Some((at, end + length));
            }
            from = at + 1;
        }
    }

    /// What follows the next blank line.
    fn after_headers(&self, from: usize) -> Option<usize> {
        (from..self.body.len()).find_map(|at| {
            let first = self.newline(at)?;
            let second = self.newline(at + first)?;
            Some(at + first + second)
        })
    }

    fn text(&self, from: usize, to: usize) -> String {
        String::from_utf8_lossy(self.body.get(from..to).unwrap_or_default()).into_owned()
    }

    /// A field, wherever its name stands behind the first disposition, and the boundary that follows it.
    fn field(&self, at: usize, name: &str) -> Result<Option<(String, usize)>, Response> {
        let Some((_, begin)) = self.delimiter(at) else {
            return Ok(None);
        };
        let Some(disposition) = self.find(DISPOSITION, begin).map(|d| d + DISPOSITION.len()) else {
            return Ok(None);
        };
        let tail = format!("; name=\"{name}\"");
        let Some(end) = self.find(tail.as_bytes(), disposition) else {
            return Ok(None);
        };
        if self.delimiter(end + tail.len()).is_none() {
            return Ok(None);
        }
        check_disposition(&self.text(disposition, end))?;
        let start = self.after_headers(end + tail.len()).unwrap_or(end + tail.len());
        let Some((next, _)) = self.delimiter(start) else {
            return Ok(None);
        };
        Ok(Some((self.text(start, next).trim().to_string(), next)))
    }

    /// The file's part must begin with its disposition.
    fn file(&self, at: usize) -> Result<Option<(String, usize)>, Response> {
        let Some((_, begin)) = self.delimiter(at) else {
            return Ok(None);
        };
        if !self.body[begin..].starts_with(DISPOSITION) {
            return Ok(None);
        }
        let start = begin + DISPOSITION.len();
        let Some(name_at) = self.find(b"; name=\"", start) else {
            return Ok(None);
        };
        let Some((name_end, file_at)) = self.filename_at(name_at + 8) else {
            return Ok(None);
        };
        let quote = self.find(b"\"", file_at).unwrap_or(self.body.len());
        check_disposition(&self.text(start, name_at))?;
        let name = self.text(name_at + 8, name_end);
        if name != "filename" {
            return Err(refuse(format!(
                "wrong field name '{name}' for file upload, expected 'filename' at {SERVER} line 1325.\n"
            )));
        }
        let data = self.after_headers(quote + 1).unwrap_or(quote + 1);
        Ok(Some((self.text(file_at, quote).trim().to_string(), data)))
    }

    /// The first `"; filename="` with something in its quotes.
    fn filename_at(&self, mut from: usize) -> Option<(usize, usize)> {
        const TAIL: &[u8] = b"\"; filename=\"";
        loop {
            let end = self.find(TAIL, from)?;
            let begin = end + TAIL.len();
            if self.find(b"\"", begin)? > begin {
                return Some((end, begin));
            }
            from = end + 1;
        }
    }

    /// Everything up to the closing boundary and the line end before it.
    fn data(&self, start: usize) -> Option<Bytes> {
        let closing = [&self.marker[..], b"--"].concat();
        let close = self.find(&closing, start)?;
        let data = self.body.slice(start..close);
        let end = match &data[..] {
            [.., b'\r', b'\n'] => data.len() - 2,
            [.., b'\n'] => data.len() - 1,
            _ => data.len(),
        };
        Some(data.slice(..end))
    }
}

fn check_disposition(given: &str) -> Result<(), Response> {
    if given == "form-data" {
        return Ok(());
    }
    Err(refuse(format!(
        "wrong Content-Disposition '{given}' in multipart, expected 'form-data'\n"
    )))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::{Form, content_type, parse};
    use crate::http::Request;

    const FILE: &str = "Content-Disposition: form-data; name=\"filename\"; filename=\"x.iso\"";

    /// Parts as header lines and a value, with the line ends of a browser.
    fn body(parts: &[(&str, &str)]) -> String {
        let parts: String = parts
            .iter()
            .map(|(head, value)| format!("--B\r\n{head}\r\n\r\n{value}\r\n"))
            .collect();
        parts + "--B--\r\n"
    }

    fn named(name: &str) -> String {
        format!("Content-Disposition: form-data; name=\"{name}\"")
    }

    fn read(text: &str) -> Result<Form, (u16, String, String)> {
        parse(&Bytes::from(text.to_string()), "B")
            .map_err(|r| (r.status, r.reason, String::from_utf8_lossy(&r.body).into_owned()))
    }

    fn refused(parts: &[(&str, &str)]) -> (u16, String) {
        let (status, reason, _) = read(&body(parts)).expect_err("refused");
        (status, reason)
    }

    const BAD: (u16, &str) = (400, "Bad Request");
    const FAILED: (u16, &str) = (500, "upload failed at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 1370.");

    fn is(found: (u16, String), expected: (u16, &str)) {
        assert_eq!((found.0, found.1.as_str()), expected);
    }

    #[test]
    fn fields_in_order_and_the_file_last_are_read() {
        let (content, algorithm, sum) = (named("content"), named("checksum-algorithm"), named("checksum"));
        let form = read(&body(&[
            (&content, "iso"),
            (&algorithm, "md5"),
            (&sum, " ab "),
            (FILE, "data\r\nmore"),
        ]))
        .expect("read");
        assert_eq!(
            form.fields,
            [
                ("content", "iso".to_string()),
                ("checksum-algorithm", "md5".into()),
                ("checksum", "ab".into())
            ]
        );
        assert_eq!(
            (form.filename.as_str(), &form.file[..]),
            ("x.iso", b"data\r\nmore".as_slice())
        );
    }

    #[test]
    fn bare_line_feeds_a_preamble_and_other_headers_do_not_matter() {
        let text = format!(
            "preamble\n--B\nX: y\nContent-Disposition: form-data; name=\"content\"\nContent-Type: text/plain\n\niso\n--B\n{FILE}\nContent-Type: a/b\n\nd\n--B--"
        );
        let form = read(&text).expect("read");
        assert_eq!((form.fields[0].1.as_str(), &form.file[..]), ("iso", b"d".as_slice()));
    }

    #[test]
    fn a_field_out_of_order_is_a_bad_request() {
        let (content, algorithm, sum) = (named("content"), named("checksum-algorithm"), named("checksum"));
        is(refused(&[(&sum, "ab"), (&content, "iso"), (FILE, "d")]), BAD);
        is(
            refused(&[(&content, "iso"), (&sum, "ab"), (&algorithm, "md5"), (FILE, "d")]),
            BAD,
        );
        is(refused(&[(&named("foo"), "1"), (&content, "iso"), (FILE, "d")]), BAD);
        is(refused(&[(&content, "iso"), (&named("foo"), "1"), (FILE, "d")]), BAD);
        is(refused(&[(&content, "iso"), (&content, "import"), (FILE, "d")]), BAD);
    }

    #[test]
    fn without_carriage_returns_the_same_mistake_is_told() {
        let text = body(&[(&named("foo"), "1"), (&named("content"), "iso"), (FILE, "d")]).replace('\r', "");
        let (status, reason, told) = read(&text).expect_err("refused");
        assert_eq!(
            (status, reason.as_str()),
            (500, "wrong Content-Disposition 'form-data; name=\"foo\"")
        );
        assert!(told.ends_with("Content-Disposition: form-data' in multipart, expected 'form-data'\n"));
    }

    #[test]
    fn the_file_before_a_field_swallows_it() {
        let form = read(&body(&[(FILE, "d"), (&named("content"), "iso")])).expect("read");
        assert!(form.fields.is_empty() && form.file.starts_with(b"d\r\n--B\r\nContent-Disposition"));
    }

    #[test]
    fn a_file_field_of_another_name_is_told() {
        let wrong = FILE.replace("name=\"filename\"", "name=\"file\"");
        let expected = "wrong field name 'file' for file upload, expected 'filename' at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 1325.";
        is(refused(&[(&named("content"), "iso"), (&wrong, "d")]), (500, expected));
    }

    #[test]
    fn a_file_part_in_another_spelling_is_not_found() {
        let content = named("content");
        for head in [
            FILE.replace("Content-Disposition", "content-disposition"),
            FILE.replace("filename=\"x.iso\"", "filename=x.iso"),
            FILE.replace("filename=\"x.iso\"", "filename*=UTF-8''x.iso"),
            FILE.replace("filename=\"x.iso\"", "filename=\"\""),
            format!("Content-Type: a/b\r\n{FILE}"),
            named("filename"),
        ] {
            is(refused(&[(&content, "iso"), (&head, "d")]), FAILED);
        }
    }

    #[test]
    fn an_attachment_is_no_form_data() {
        let head = FILE.replace("form-data", "attachment");
        let expected = "wrong Content-Disposition 'attachment' in multipart, expected 'form-data'";
        is(refused(&[(&named("content"), "iso"), (&head, "d")]), (500, expected));
    }

    #[test]
    fn a_body_without_its_end_or_with_another_boundary_fails() {
        let whole = body(&[(&named("content"), "iso"), (FILE, "d")]);
        for text in [whole.replace("--B--", ""), whole.replace("--B", "--C"), String::new()] {
            let (status, reason, _) = read(&text).expect_err("refused");
            is((status, reason), FAILED);
        }
    }

    #[test]
    fn the_boundary_is_taken_with_its_quotes() {
        let of = |value: &str| Request {
            headers: vec![("Content-Type".into(), value.into())],
            ..Request::default()
        };
        let plain = of("multipart/form-data; boundary=B");
        assert_eq!(content_type(&plain), (Some("multipart/form-data"), Some("B")));
        let quoted = of("multipart/form-data;boundary=\"B\", x=y");
        assert_eq!(content_type(&quoted), (Some("multipart/form-data"), Some("\"B\"")));
        assert_eq!(content_type(&of("multipart/form-data")), (Some("multipart/form-data"), None));
        assert_eq!(content_type(&Request::default()), (None, None));
    }
}
