//! A gRPC call as bytes: any method, any answer.

use std::time::Duration;

use bytes::{Buf, BufMut};
use prost::Message;
use serde_json::Value;
use talos_proto::{common, cosi::resource as cosi, machine};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::{MetadataKey, MetadataValue};
use tonic::{Code, Status};

use super::Node;

/// How a call ended, and the messages that came.
#[derive(Debug)]
pub struct Outcome {
    pub code: Code,
    pub message: String,
    pub answers: Vec<Vec<u8>>,
}

/// How long a call may take before it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(4);

impl Node {
    pub async fn raw(&self, method: &str, request: &Value) -> Outcome {
        self.raw_with(method, request, &[]).await
    }

    pub async fn raw_with(&self, method: &str, request: &Value, headers: &[(&str, &str)]) -> Outcome {
        let mut answers = Vec::new();
        let ended = tokio::time::timeout(
            PATIENCE,
            self.exchange(method, encode(method, request), headers, &mut answers),
        )
        .await;
        let status = match ended {
            Ok(Ok(())) => Status::ok(""),
            Ok(Err(status)) => status,
            Err(_) => Status::deadline_exceeded(""),
        };
        Outcome {
            code: status.code(),
            message: status.message().to_owned(),
            answers,
        }
    }

    async fn exchange(
        &self,
        method: &str,
        request: Vec<u8>,
        headers: &[(&str, &str)],
        answers: &mut Vec<Vec<u8>>,
    ) -> Result<(), Status> {
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut request = tonic::Request::new(request);
        for (name, value) in headers {
            let key: MetadataKey<_> = name.parse().unwrap();
            request.metadata_mut().append(key, MetadataValue::try_from(*value).unwrap());
        }
        let path = format!("/{method}").parse().unwrap();
        let mut stream = client.server_streaming(request, path, Raw).await?.into_inner();
        while let Some(answer) = stream.message().await? {
            answers.push(answer);
        }
        Ok(())
    }
}

struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining()).to_vec()))
    }
}

/// A recorded request, which is JSON, as the bytes it stood for.
fn encode(method: &str, request: &Value) -> Vec<u8> {
    let text = |key: &str| request[key].as_str().unwrap_or_default().to_owned();
    let number = |key: &str| {
        request[key]
            .as_i64()
            .or_else(|| request[key].as_str()?.parse().ok())
            .unwrap_or(0)
    };
    let small = |key: &str| i32::try_from(number(key)).unwrap();
    match method.rsplit('/').next().unwrap() {
        "Events" => machine::EventsRequest {
            tail_events: small("tail_events"),
            tail_id: text("tail_id"),
            tail_seconds: small("tail_seconds"),
            with_actor_id: String::new(),
        }
        .encode_to_vec(),
        "Read" => machine::ReadRequest { path: text("path") }.encode_to_vec(),
        "Logs" => machine::LogsRequest {
            namespace: text("namespace"),
            id: text("id"),
            driver: 0,
            follow: false,
            tail_lines: small("tail_lines"),
        }
        .encode_to_vec(),
        "MetaWrite" => machine::MetaWriteRequest {
            key: 12,
            value: b"x".to_vec(),
        }
        .encode_to_vec(),
        "GenerateClientConfiguration" => client_configuration(request).encode_to_vec(),
        "EtcdMemberList" => machine::EtcdMemberListRequest {
            query_local: request["query_local"] == true,
        }
        .encode_to_vec(),
        "EtcdRemoveMemberByID" => machine::EtcdRemoveMemberByIdRequest {
            member_id: text("member_id").parse().unwrap_or(0),
        }
        .encode_to_vec(),
        "ServiceRestart" | "ServiceStop" => machine::ServiceStopRequest { id: text("id") }.encode_to_vec(),
        "Reset" => reset(request).encode_to_vec(),
        "List" if method.starts_with("machine.MachineService") => machine::ListRequest {
            root: text("root"),
            ..Default::default()
        }
        .encode_to_vec(),
        "List" if method.starts_with("cosi") => cosi::ListRequest {
            namespace: text("namespace"),
            r#type: text("type"),
            options: None,
        }
        .encode_to_vec(),
        "List" => machine::ImageServiceListRequest {
            containerd: containerd(request),
        }
        .encode_to_vec(),
        "Pull" => machine::ImageServicePullRequest {
            containerd: containerd(request),
            image_ref: text("image_ref"),
        }
        .encode_to_vec(),
        "Get" | "Destroy" => cosi::GetRequest {
            namespace: text("namespace"),
            r#type: text("type"),
            id: text("id"),
            options: None,
        }
        .encode_to_vec(),
        "Watch" => watch(request).encode_to_vec(),
        "ApplyConfiguration" => machine::ApplyConfigurationRequest {
            dry_run: request["dry_run"] == true,
            mode: 2,
            ..Default::default()
        }
        .encode_to_vec(),
        _ => Vec::new(),
    }
}

fn client_configuration(request: &Value) -> machine::GenerateClientConfigurationRequest {
    let roles = request["roles"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|role| Some(role.as_str()?.to_owned()))
        .collect();
    let crt_ttl = request["crt_ttl"]
        .as_str()
        .map(|_| prost_types::Duration { seconds: 3600, nanos: 0 });
    machine::GenerateClientConfigurationRequest { roles, crt_ttl }
}

fn reset(request: &Value) -> machine::ResetRequest {
    let labels = request["system_partitions_to_wipe"].as_array().into_iter().flatten();
    let system_partitions_to_wipe = labels
        .map(|spec| machine::ResetPartitionSpec {
            label: spec["label"].as_str().unwrap().to_owned(),
            wipe: true,
        })
        .collect();
    machine::ResetRequest {
        graceful: request["graceful"] == true,
        reboot: request["reboot"] == true,
        system_partitions_to_wipe,
        ..Default::default()
    }
}

fn containerd(request: &Value) -> Option<common::ContainerdInstance> {
    request["containerd"]
        .as_object()
        .map(|_| common::ContainerdInstance { driver: 1, namespace: 1 })
}

fn watch(request: &Value) -> cosi::WatchRequest {
    let options = &request["options"];
    let bookmark = options["start_from_bookmark"].as_str().map(|_| vec![0, 0, 0]);
    cosi::WatchRequest {
        namespace: request["namespace"].as_str().unwrap().to_owned(),
        r#type: request["type"].as_str().unwrap().to_owned(),
        id: request["id"].as_str().map(str::to_owned),
        options: Some(cosi::WatchOptions {
            bootstrap_contents: options["bootstrap_contents"] == true,
            aggregated: options["aggregated"] == true,
            start_from_bookmark: bookmark,
            ..Default::default()
        }),
        api_version: i32::try_from(request["api_version"].as_i64().unwrap_or(0)).unwrap(),
    }
}
