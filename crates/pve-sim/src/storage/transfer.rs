//! Files from outside: uploads and downloads.

use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use flate2::read::GzDecoder;
use mainstay_net::http::{Body, HttpClient, HttpOptions, HttpResponse};
use mainstay_net::{Connector, Trust};
use serde_json::json;
use sha1::Digest;
use url::Url;

use super::image::{self, Untrusted};
use super::volume::{Kind, Name, Volume};
use crate::datacenter::{Answer, Datacenter};
use crate::die::Die;
use crate::dispatch::Call;
use crate::guest::{Content, Platter};
use crate::observe::Effect;
use crate::schema::Params;
use crate::tasks::Job;

/// The name a file gets: its last part, odd characters replaced.
fn normalize(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    last.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "_.-".contains(c) {
                c
            } else {
                '_'
            }
        })
        .collect()
}

/// Extensions of images to import are taken as they are written, others in any case.
fn check_extension(kind: Kind, name: &str) -> Result<(), Die> {
    let lower = name.to_ascii_lowercase();
    let ends = |name: &str, list: &[&str]| list.iter().any(|e| name.len() > e.len() && name.ends_with(e));
    let (fits, text) = match kind {
        Kind::Iso => (ends(&lower, &[".iso", ".img"]), "wrong file extension"),
        Kind::Template => (
            ends(&lower, &[".tar.gz", ".tar.xz", ".tar.zst", ".tar.bz2", ".tar"]),
            "wrong file extension",
        ),
        _ => (
            ends(name, &[".ova", ".qcow2", ".raw", ".vmdk"]),
            "invalid filename or wrong extension",
        ),
    };
    if fits { Ok(()) } else { Err(Die::parameter("filename", text)) }
}

/// Imports other than appliances came with 8.4.
fn check_import_release(dc: &Datacenter, kind: Kind, name: &str) -> Result<(), Die> {
    if kind == Kind::Import && dc.release().number() < (8, 4) && !name.to_ascii_lowercase().ends_with(".ova") {
        return Err(Die::parameter("filename", "invalid filename or wrong extension"));
    }
    Ok(())
}

struct Target {
    storage: String,
    kind: Kind,
    name: String,
    volid: String,
    path: String,
}

/// Where a file goes, if its name is one.
fn target(job: &Job, host: &str, params: &Params) -> Result<Target, Die> {
    let kind = Kind::parse(params.text("content")).unwrap_or(Kind::Iso);
    let id = params.text("storage");
    let name = normalize(params.text("filename"));
    let state = job.dc.state();
    let storage = state.storage_on(id, host)?;
    check_extension(kind, &name)?;
    check_import_release(&job.dc, kind, &name)?;
    let full = format!("{}/{name}", kind.name());
    let path = Name { full: &full }.path(id, storage);
    Ok(Target {
        storage: id.into(),
        kind,
        volid: format!("{id}:{full}"),
        path,
        name,
    })
}

fn format_of(kind: Kind, name: &str) -> String {
    match kind {
        Kind::Iso => "iso".into(),
        Kind::Template => name
            .rsplit_once("tar.")
            .map_or_else(|| "tar".into(), |(_, packing)| format!("t{packing}")),
        _ => name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase(),
    }
}

fn store(job: &Job, host: &str, target: &Target, bytes: Bytes) {
    put(job, host, target, bytes);
    job.dc.tell(
        job,
        &Effect::VolumeCreated {
            volid: target.volid.clone(),
            host: host.into(),
        },
    );
}

fn put(job: &Job, host: &str, target: &Target, bytes: Bytes) {
    let format = format_of(target.kind, &target.name);
    let size = if target.kind == Kind::Import {
        image::virtual_size(&format, &bytes)
    } else {
        bytes.len() as u64
    };
    let volume = Volume {
        volid: target.volid.clone(),
        kind: target.kind,
        format,
        size,
        file_size: bytes.len() as u64,
        used: bytes.len() as u64,
        vmid: None,
        parent: None,
        ctime: job.dc.epoch(),
        content: Platter::new(Content::Image(bytes)),
        sha256: None,
        snapshots: [].into(),
    };
    let mut state = job.dc.state();
    let place = state.place(&target.storage, host).to_string();
    state.volumes.insert(&place, volume);
}

/// Images from outside must be what they say, and stand alone.
fn check_untrusted(job: &Job, target: &Target, bytes: &[u8], path: &str) -> Result<(), Die> {
    let format = match target.kind {
        Kind::Import => format_of(target.kind, &target.name),
        _ => return Ok(()),
    };
    match image::refuse(&format, bytes, path) {
        Ok(()) => Ok(()),
        Err(Untrusted::NotQcow2 { path }) => {
            job.say(format!(
                "command '/usr/bin/qemu-img info '--output=json' {path} -f qcow2' failed: exit code 1"
            ));
            Err(Die::new(format!(
                "qemu-img: Could not open '{path}': Image is not in qcow2 format"
            )))
        }
        Err(Untrusted::Backed { path }) => Err(Die::new(format!("backing file not allowed for untrusted image '{path}'!"))),
    }
}

fn checksum(algorithm: &str, bytes: &[u8]) -> String {
    match algorithm {
        "md5" => format!("{:x}", md5::compute(bytes)),
        "sha1" => hex::encode(sha1::Sha1::digest(bytes)),
        "sha224" => hex::encode(sha2::Sha224::digest(bytes)),
        "sha384" => hex::encode(sha2::Sha384::digest(bytes)),
        "sha512" => hex::encode(sha2::Sha512::digest(bytes)),
        _ => hex::encode(sha2::Sha256::digest(bytes)),
    }
}

fn verify(job: &Job, wanted: &Option<(String, String)>, bytes: &[u8]) -> Result<(), Die> {
    let Some((algorithm, expected)) = wanted else { return Ok(()) };
    job.begin_line("calculating checksum...");
    let got = checksum(algorithm, bytes);
    if got.eq_ignore_ascii_case(expected) {
        job.end_line("OK, checksum verified");
        return Ok(());
    }
    Err(Die::new(format!("checksum mismatch: got '{got}' != expect '{expected}'")))
}

fn wanted_checksum(params: &Params) -> Option<(String, String)> {
    Some((
        params.get("checksum-algorithm")?.to_string(),
        params.get("checksum")?.to_string(),
    ))
}

/// Takes an upload. What the form gave is checked like the parameters of any other call.
pub(crate) fn upload(call: Call) -> Answer {
    let (job, params) = (&call.job, &call.params);
    let host = params.text("node").to_string();
    file_based(job, &host, params, "")?;
    let Some(file) = call.file.clone() else {
        return match params.get("tmpfilename") {
            None => Err(Die::new("missing temporary file name")),
            Some(name) => Err(Die::new(format!("temporary file '{name}' does not exist"))),
        };
    };
    let goal = target(job, &host, params)?;
    if !job.dc.state().storage(&goal.storage)?.content.contains(goal.kind.name()) {
        let text = format!("storage '{}' does not support '{}' content", goal.storage, goal.kind.name());
        return Err(Die::new(text));
    }
    let temporary = format!("/var/tmp/pveupload-{}", job.dc.state().random_hex(32));
    let wanted = wanted_checksum(params);
    let address = job.dc.state().require_node(&host)?.ip.clone();
    let upid = job.fork("imgcopy", "", move |job| async move {
        job.say(format!("starting file import from: {temporary}"));
        verify(&job, &wanted, &file)?;
        check_untrusted(&job, &goal, &file, &temporary)?;
        job.say(format!("target node: {host}"));
        job.say(format!("target file: {}", goal.path));
        job.say(format!("file size is: {}", file.len()));
        let command = if host == job.host {
            format!("cp -- {temporary} {}", goal.path)
        } else {
            format!(
                "/usr/bin/scp -o BatchMode=yes -o HostKeyAlias={host} -o UserKnownHostsFile=/etc/pve/nodes/{host}/ssh_known_hosts -o GlobalKnownHostsFile=none -p -- {temporary} [{address}]:{}",
                goal.path
            )
        };
        job.say(format!("command: {command}"));
        copy_over(&job, &host, &goal, file, &command).await?;
        job.say("finished file import successfully");
        Ok(())
    });
    Ok(upid.into())
}

/// The copy goes straight to the final name. What was there is gone, and a copy that breaks off leaves nothing there.
async fn copy_over(job: &Job, host: &str, goal: &Target, file: Bytes, command: &str) -> Result<(), Die> {
    let total = file.len();
    remove(job, host, goal);
    let free = job.dc.state().free(&goal.storage, host);
    put(job, host, goal, Bytes::new());
    let copied = job.copy_bytes((&goal.storage, host), total as u64, None, |_| {}).await;
    remove(job, host, goal);
    copied.map_err(|die| die.prefixed(&format!("import failed: command '{command}' failed: ")))?;
    if total as u64 > free {
        return Err(Die::new(format!("import failed: command '{command}' failed: exit code 1")));
    }
    store(job, host, goal, file);
    Ok(())
}

fn remove(job: &Job, host: &str, goal: &Target) {
    let mut state = job.dc.state();
    let place = state.place(&goal.storage, host).to_string();
    state.volumes.remove(&place, &goal.volid);
}

/// Only storages with a path take files.
fn file_based(job: &Job, host: &str, params: &Params, more: &str) -> Result<(), Die> {
    let state = job.dc.state();
    let storage = state.storage_on(params.text("storage"), host)?;
    if storage.is_file_based() {
        return Ok(());
    }
    Err(Die::new(format!("can't upload to storage type '{}'{more}", storage.kind)))
}

/// Starts a download by the host itself.
pub(super) async fn download_url(call: Call) -> Answer {
    let host = call.job.host.clone();
    file_based(&call.job, &host, &call.params, ", not a file based storage!")?;
    let (id, content) = (call.params.text("storage"), call.params.text("content"));
    if !call.job.dc.state().storage(id)?.content.contains(content) {
        let text = format!("storage '{id}' is not configured for content-type '{content}'");
        return Err(Die::new(text));
    }
    let goal = target(&call.job, &host, &call.params)?;
    let wanted = wanted_checksum(&call.params);
    let url = call.params.text("url").to_string();
    let compression = call.params.get("compression").map(str::to_string);
    let check_certificates = call.params.get("verify-certificates") != Some("0");
    let id = goal.name.clone();
    let upid = call.job.fork("download", &id, move |job| async move {
        if let Some(method) = &compression {
            check_compression(goal.kind, method)?;
        }
        download(&job, &goal, &url, wanted, compression.as_deref(), check_certificates).await
    });
    Ok(upid.into())
}

fn check_compression(kind: Kind, method: &str) -> Result<(), Die> {
    if kind != Kind::Iso {
        return Err(Die::new(format!("decompression not supported for {}", kind.name())));
    }
    match decompressor(method) {
        Some(_) => Ok(()),
        None => Err(Die::new("no decompression method found")),
    }
}

/// The command that unpacks, and what it ends with if the file is something else.
fn decompressor(method: &str) -> Option<(&'static str, u8)> {
    match method {
        "gz" => Some(("zcat", 1)),
        "lzo" => Some(("lzop -d -c", 1)),
        "zst" => Some(("zstd -q -d -c", 1)),
        "bz2" => Some(("bzcat -q", 2)),
        _ => None,
    }
}

async fn download(
    job: &Job,
    goal: &Target,
    url: &str,
    wanted: Option<(String, String)>,
    unpack: Option<&str>,
    check: bool,
) -> Result<(), Die> {
    job.say(format!("downloading {url} to {}", goal.path));
    if let Some(present) = existing(job, goal) {
        return reuse(job, goal, &wanted, &present);
    }
    let bytes = fetch(job, goal, url, check).await?;
    verify(job, &wanted, &bytes)?;
    let bytes = match unpack {
        Some(method) => decompress(job, goal, method, &bytes)?,
        None => bytes,
    };
    let temporary = format!("{}.tmp_dwnl.{}", goal.path, job.dc.state().next_pid());
    check_untrusted(job, goal, &bytes, &temporary).map_err(|die| die.prefixed("failed to verify file: "))?;
    store(job, &job.host, goal, bytes);
    job.say(format!("download of '{url}' to '{}' finished", goal.path));
    Ok(())
}

fn existing(job: &Job, goal: &Target) -> Option<Volume> {
    job.dc.state().volume(&job.host, &goal.volid).cloned()
}

/// With the right checksum the file that is there will do.
fn reuse(job: &Job, goal: &Target, wanted: &Option<(String, String)>, present: &Volume) -> Result<(), Die> {
    let Some((algorithm, expected)) = wanted else {
        return Err(Die::new(format!("refusing to override existing file '{}'", goal.path)));
    };
    job.begin_line("calculating checksum of existing file...");
    let got = match &present.sha256 {
        Some(known) if algorithm == "sha256" => known.clone(),
        _ => checksum(algorithm, &present.bytes()),
    };
    if got.eq_ignore_ascii_case(expected) {
        job.end_line("OK, got correct file already, no need to download");
        return Ok(());
    }
    Err(Die::new(format!(
        "checksum mismatch: got '{got}' != expect '{expected}', aborting"
    )))
}

/// wget, with what it prints.
async fn fetch(job: &Job, goal: &Target, url: &str, check: bool) -> Result<Bytes, Die> {
    let stamp = job.dc.wall().now().strftime("%Y-%m-%d %H:%M:%S").to_string();
    job.say(format!("--{stamp}--  {url}"));
    let failed = |code: u8| Die::new(format!("download failed: exit code {code}"));
    let answer = tokio::select! {
        biased;
        () = job.interrupted() => return Err(Die::interrupted().prefixed("download failed: ")),
        answer = get(&job.dc, url, "GET", check) => answer.map_err(|_| failed(4))?,
    };
    let kind = answer
        .headers
        .get("content-type")
        .and_then(|v| v.to_str().ok())
        .unwrap_or("application/octet-stream")
        .to_string();
    job.say(format!(
        "HTTP request sent, awaiting response... {} {}",
        answer.status.as_u16(),
        answer.reason
    ));
    if !answer.status.is_success() {
        return Err(failed(8));
    }
    let size = answer.body.len() as u64;
    job.say(format!("Length: {size} [{kind}]"));
    let temporary = format!("{}.tmp_dwnl.{}", goal.path, job.dc.state().next_pid());
    job.say(format!("Saving to: '{temporary}'"));
    let rate = job.dc.timing().download_rate.max(1);
    let duration = job.dc.pace().scale(Duration::from_secs_f64(size as f64 / rate as f64));
    let told = |share: f64| {
        let (kib, percent) = (size as f64 * share / 1024.0, share * 100.0);
        job.say(format!("{kib:>6.0}K ........ ........ ........ ........ {percent:>3.0}%"));
    };
    let wants = rate as f64 / job.dc.timing().copy_rate.max(1) as f64;
    let took = job.copy(&goal.storage, &job.host, (duration, wants), told).await;
    took.map_err(|die| die.prefixed("download failed: "))?;
    if size > job.dc.state().free(&goal.storage, &job.host) {
        return Err(Die::new(format!(
            "download failed: Cannot write to '{temporary}' (No space left on device)."
        )));
    }
    job.say("     0K                                    100%  692M=0s");
    job.say(format!("{stamp} (692 MB/s) - '{temporary}' saved [{size}/{size}]"));
    Ok(answer.body)
}

/// Only gzip is unpacked here. The other programs find that the file is not theirs.
fn decompress(job: &Job, goal: &Target, method: &str, bytes: &[u8]) -> Result<Bytes, Die> {
    let pid = job.dc.state().next_pid();
    let temporary = format!("{}.tmp_dwnl.{pid}", goal.path);
    job.say(format!("decompressing {temporary} to {}.tmp_dcom.{pid}", goal.path));
    let mut out = Vec::new();
    if method == "gz" && GzDecoder::new(bytes).read_to_end(&mut out).is_ok() {
        return Ok(out.into());
    }
    if method == "gz" {
        job.say("");
        job.say(format!("gzip: {temporary}: not in gzip format"));
    }
    let (command, code) = decompressor(method).unwrap_or(("zcat", 1));
    Err(Die::new(format!("command '{command} {temporary}' failed: exit code {code}")))
}

/// One request to a web server, redirects followed.
async fn get(dc: &Datacenter, url: &str, verb: &str, check: bool) -> Result<HttpResponse, Die> {
    let mut url = Url::parse(url).map_err(|e| Die::new(e.to_string()))?;
    for _ in 0..20 {
        let trust = match url.scheme() {
            "https" if check => Trust::Roots {
                extra_ca_pem: dc.web_ca(),
            },
            "https" => Trust::Nothing,
            _ => Trust::Plain,
        };
        let fault = |e: &dyn std::fmt::Display| Die::new(e.to_string());
        let connector = Connector::new(dc.dialer(), &trust, dc.wall(), Duration::from_secs(30)).map_err(|e| fault(&e))?;
        let options = HttpOptions {
            http1_only: true,
            max_body: usize::MAX,
            ..HttpOptions::default()
        };
        let request = http::Request::builder()
            .method(verb)
            .uri(url.as_str())
            .header("host", host_of(&url));
        let request = request.body(Body::empty()).map_err(|e| fault(&e))?;
        let answer = HttpClient::new(connector, options)
            .send(request, Duration::from_secs(3600))
            .await
            .map_err(|e| fault(&e))?;
        let location = answer.headers.get("location").and_then(|l| l.to_str().ok());
        match location.filter(|_| answer.status.is_redirection()).map(|l| url.join(l)) {
            Some(Ok(next)) => url = next,
            _ => return Ok(answer),
        }
    }
    Err(Die::new("20 redirections exceeded."))
}

fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or(host.to_string(), |port| format!("{host}:{port}"))
}

/// `GET /nodes/{node}/query-url-metadata`
pub(crate) async fn query_url_metadata(call: &Call) -> Answer {
    let url = call.params.text("url");
    let check = call.params.get("verify-certificates") != Some("0");
    let answer = get(&call.job.dc, url, "HEAD", check)
        .await
        .map_err(|_| Die::new(format!("invalid server response: '500 {}'", unreachable_text(url))))?;
    if answer.status.as_u16() != 200 {
        return Err(Die::new(format!(
            "invalid server response: '{} {}'",
            answer.status.as_u16(),
            answer.reason
        )));
    }
    let header = |name: &str| answer.headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_string);
    let mut data = json!({});
    let size = header("content-length").and_then(|l| l.parse::<u64>().ok());
    if let Some(size) = size.filter(|size| *size > 0) {
        data["size"] = json!(size);
    }
    if let Some(kind) = header("content-type") {
        data["mimetype"] = json!(kind.split(';').next().unwrap_or_default());
    }
    let named = header("content-disposition").as_deref().and_then(named_by_disposition);
    if let Some(name) = named.or_else(|| named_by_url(url)).filter(|n| !n.is_empty()) {
        data["filename"] = json!(name);
    }
    Ok(data.into())
}

fn named_by_disposition(header: &str) -> Option<String> {
    let value = header.split("filename=").nth(1)?;
    let quoted = value
        .strip_prefix('"')
        .and_then(|rest| rest.split_once('"'))
        .map(|(name, _)| name);
    Some(
        quoted
            .unwrap_or_else(|| value.split(';').next().unwrap_or_default())
            .to_string(),
    )
}

/// What stands between the last slash and the query; a host without a path counts as a name.
fn named_by_url(url: &str) -> Option<String> {
    let path = url.split('?').next().unwrap_or_default();
    path.rsplit_once('/').map(|(_, name)| name.to_string())
}

/// What the library says that PVE asks with.
fn unreachable_text(url: &str) -> String {
    let Ok(url) = Url::parse(url) else {
        return format!("URL must be absolute ({url})");
    };
    let host = url.host_str().unwrap_or_default();
    let why = match host.parse::<std::net::IpAddr>() {
        Ok(_) => "Connection refused",
        Err(_) => "Temporary failure in name resolution",
    };
    format!(
        "Can't connect to {host}:{} ({why})",
        url.port_or_known_default().unwrap_or(80)
    )
}

#[cfg(test)]
mod tests {
    use super::{named_by_disposition, named_by_url, unreachable_text};

    #[test]
    fn names_are_taken_from_the_disposition_or_the_end_of_the_url() {
        for (url, name) in [
            ("http://h/a/x%20y.iso?z=1/2", Some("x%20y.iso")),
            ("http://h:9000", Some("h:9000")),
            ("http://h/", Some("")),
        ] {
            assert_eq!(named_by_url(url).as_deref(), name, "{url}");
        }
        for (header, name) in [
            ("attachment; filename=\"a;b.iso\"; x=1", "a;b.iso"),
            ("attachment; filename=a.iso; x=1", "a.iso"),
        ] {
            assert_eq!(named_by_disposition(header).as_deref(), Some(name), "{header}");
        }
        assert_eq!(
            unreachable_text("http://127.0.0.1:9/x"),
            "Can't connect to 127.0.0.1:9 (Connection refused)"
        );
    }
}
