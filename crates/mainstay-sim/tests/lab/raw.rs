//! A gRPC call as bytes: any method, any answer.

use std::time::Duration;

use bytes::{Buf, BufMut};
use serde_json::Value;
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
        self.raw_within(PATIENCE, method, request, headers).await
    }

    pub async fn raw_within(&self, patience: Duration, method: &str, request: &Value, headers: &[(&str, &str)]) -> Outcome {
        let mut answers = Vec::new();
        let ended = tokio::time::timeout(
            patience,
            self.exchange(method, super::reflect::encode(method, request), headers, &mut answers),
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
        let path = format!("/{}", method.trim_start_matches('/')).parse().unwrap();
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
