//! How long an observation waits for one host.

use std::time::Duration;

use pve_api::{Call, Client};

/// A host whose certificate its peers do not accept takes thirty seconds for each call. What is not answered by then is unknown, and
/// everything about the other hosts is known.
const HOST_ANSWERS: Duration = Duration::from_secs(12);

/// A call that one host answers; else why it does not.
pub async fn within<T>(pve: &Client, call: Call<T>) -> Result<T, String> {
    match tokio::time::timeout(HOST_ANSWERS, pve.call(call)).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {} s", HOST_ANSWERS.as_secs())),
    }
}
