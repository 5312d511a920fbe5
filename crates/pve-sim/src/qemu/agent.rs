//! The QEMU guest agent: calls into the guest that may not answer.

use std::time::Duration;

use serde_json::{Value, json};

use super::runtime::with_guest;
use crate::datacenter::{Answer, Reply};
use crate::die::Die;
use crate::dispatch::Call;
use crate::tasks::Job;

/// So many bytes of a file are read at most.
const MAX_READ: i64 = 16 << 20;

const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// Whether the agent answers; if not, three seconds have passed.
pub(super) async fn ping(job: &Job, vmid: u32) -> bool {
    let channel = job
        .dc
        .state()
        .vms
        .get(&vmid)
        .and_then(|vm| vm.running.as_ref())
        .is_some_and(|r| r.agent_channel);
    let answer = with_guest(&job.dc, vmid, |guest| guest.agent("ping", &Value::Null)).flatten();
    if channel && answer.is_some() {
        return true;
    }
    tokio::time::sleep(PING_TIMEOUT).await;
    false
}

async fn require_agent(job: &Job, vmid: u32) -> Result<(), Die> {
    {
        let state = job.dc.state();
        let vm = state.vm(&job.host, vmid)?;
        // An agent that is set to off is still one that is configured.
        if vm.conf.get("agent").is_none() {
            return Err(Die::new("No QEMU guest agent configured"));
        }
        if !vm.is_running() {
            return Err(Die::new(format!("VM {vmid} is not running")));
        }
    }
    if ping(job, vmid).await {
        Ok(())
    } else {
        Err(Die::new("QEMU guest agent is not running"))
    }
}

pub(super) async fn handle(call: Call) -> Answer {
    let command = match call.method.template.rsplit('/').next() {
        // The old form names the command in the body.
        Some("agent") => call.params.text("command").to_string(),
        last => last.unwrap_or_default().to_string(),
    };
    let vmid = call.params.vmid();
    require_agent(&call.job, vmid).await?;
    match command.as_str() {
        "exec" => exec(&call, vmid).await,
        "exec-status" => exec_status(&call, vmid),
        "file-read" => file_read(&call, vmid),
        "file-write" => file_write(&call, vmid),
        "set-user-password" => wrapped(
            &call,
            vmid,
            "set-user-password",
            &json!({ "username": call.params.text("username") }),
        ),
        _ => plain(&call, vmid, &command),
    }
}

fn ask(call: &Call, vmid: u32, command: &str, arguments: &Value) -> Result<Result<Value, String>, Die> {
    with_guest(&call.job.dc, vmid, |guest| guest.agent(command, arguments))
        .flatten()
        .ok_or_else(|| Die::new("QEMU guest agent is not running"))
}

/// A guest's refusal of a plain command is still a success.
fn plain(call: &Call, vmid: u32, command: &str) -> Answer {
    let result = match ask(call, vmid, command, &Value::Null)? {
        Ok(value) => value,
        Err(text) => json!({ "error": { "class": "GenericError", "desc": text } }),
    };
    Ok(json!({ "result": result }).into())
}

fn agent_error(text: String) -> Die {
    Die::new(format!("Agent error: {text}"))
}

fn wrapped(call: &Call, vmid: u32, command: &str, arguments: &Value) -> Answer {
    ask(call, vmid, command, arguments)?.map_err(agent_error)?;
    Ok(Reply::default())
}

async fn exec(call: &Call, vmid: u32) -> Answer {
    let arguments = json!({ "command": call.params.list("command"), "input-data": call.params.get("input-data") });
    match ask(call, vmid, "exec", &arguments)? {
        Ok(value) => Ok(value.into()),
        // The agent answers late to a program that does not exist, and the proxy gives up first.
        Err(text) if text.contains("No such file") => {
            tokio::time::sleep(Duration::from_secs(5)).await;
            Err(Die::bare(596, "Broken pipe"))
        }
        Err(text) => Err(agent_error(text)),
    }
}

fn exec_status(call: &Call, vmid: u32) -> Answer {
    let arguments = json!({ "pid": call.params.int("pid") });
    Ok(ask(call, vmid, "exec-status", &arguments)?.map_err(agent_error)?.into())
}

fn file_read(call: &Call, vmid: u32) -> Answer {
    use base64::Engine;
    let arguments = json!({ "file": call.params.text("file") });
    let content = ask(call, vmid, "file-read", &arguments)?.map_err(agent_error)?;
    let number = |name: &str, default: i64| call.params.int(name).unwrap_or(default).max(0) as usize;
    let (offset, count) = (number("offset", 0), number("count", MAX_READ));
    let bytes = content.as_str().unwrap_or_default().as_bytes();
    let rest = bytes.get(offset..).unwrap_or_default();
    let read = &rest[..rest.len().min(count)];
    let shown = if call.params.get("decode") == Some("0") {
        base64::engine::general_purpose::STANDARD.encode(read)
    } else {
        String::from_utf8_lossy(read).into_owned()
    };
    let mut answer = json!({ "content": shown, "bytes-read": read.len() });
    // The end of a file shows only to the one who reads past it.
    if rest.len() >= count {
        answer["truncated"] = json!(1);
    }
    Ok(answer.into())
}

fn file_write(call: &Call, vmid: u32) -> Answer {
    let arguments = json!({ "file": call.params.text("file"), "content": call.params.text("content") });
    wrapped(call, vmid, "file-write", &arguments)
}
