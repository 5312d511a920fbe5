//! `Debug` of the messages that may carry keys: their shape, never their contents.

use std::fmt::{Debug, Formatter, Result};

use crate::spec::config::MachineConfigSpec;
use crate::spec::runtime::UniqueMachineTokenSpec;
use crate::{common, cosi, machine};

/// What is printed in place of a secret.
struct Redacted;

impl Debug for Redacted {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str("***")
    }
}

// A chunk of any stream: kubeconfig, etcd snapshot, file, log.
impl Debug for common::Data {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Data")
            .field("metadata", &self.metadata)
            .field("len", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

impl Debug for common::PemEncodedCertificateAndKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("PemEncodedCertificateAndKey")
            .field("crt", &self.crt.len())
            .field("key", &Redacted)
            .finish()
    }
}

impl Debug for common::PemEncodedKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("PemEncodedKey").field("key", &Redacted).finish()
    }
}

// A machine config is a resource too, and so are the cluster's root secrets.
impl Debug for cosi::resource::Spec {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Spec")
            .field("proto_len", &self.proto_spec.len())
            .field("yaml_len", &self.yaml_spec.len())
            .finish()
    }
}

impl Debug for machine::ApplyConfigurationRequest {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("ApplyConfigurationRequest")
            .field("data", &Redacted)
            .field("mode", &self.mode())
            .field("dry_run", &self.dry_run)
            .field("try_mode_timeout", &self.try_mode_timeout)
            .finish()
    }
}

impl Debug for machine::GenerateClientConfiguration {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("GenerateClientConfiguration")
            .field("metadata", &self.metadata)
            .field("key", &Redacted)
            .finish_non_exhaustive()
    }
}

impl Debug for machine::ImageServiceCredentials {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("ImageServiceCredentials")
            .field("host", &self.host)
            .field("username", &self.username)
            .field("password", &Redacted)
            .finish()
    }
}

// META holds network settings, but also keys of disk encryption and of SideroLink.
impl Debug for machine::MetaWriteRequest {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("MetaWriteRequest")
            .field("key", &self.key)
            .field("value", &Redacted)
            .finish()
    }
}

impl Debug for MachineConfigSpec {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("MachineConfigSpec")
            .field("yaml_marshalled", &Redacted)
            .finish()
    }
}

impl Debug for UniqueMachineTokenSpec {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("UniqueMachineTokenSpec").field("token", &Redacted).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "CANARY-key-material";

    #[test]
    fn no_message_with_keys_prints_them() {
        let bytes = CANARY.as_bytes().to_vec();
        let printed = [
            format!(
                "{:?}",
                common::Data {
                    bytes: bytes.clone(),
                    ..Default::default()
                }
            ),
            format!("{:?}", common::PemEncodedKey { key: bytes.clone() }),
            format!(
                "{:?}",
                common::PemEncodedCertificateAndKey {
                    crt: Vec::new(),
                    key: bytes.clone()
                }
            ),
            format!(
                "{:?}",
                cosi::resource::Spec {
                    proto_spec: bytes.clone(),
                    yaml_spec: CANARY.into()
                }
            ),
            format!(
                "{:?}",
                machine::ApplyConfigurationRequest {
                    data: bytes.clone(),
                    ..Default::default()
                }
            ),
            format!(
                "{:?}",
                machine::GenerateClientConfiguration {
                    key: bytes.clone(),
                    talosconfig: bytes.clone(),
                    ..Default::default()
                }
            ),
            format!(
                "{:?}",
                machine::ImageServiceCredentials {
                    password: CANARY.into(),
                    ..Default::default()
                }
            ),
            format!(
                "{:?}",
                machine::MetaWriteRequest {
                    key: 9,
                    value: bytes.clone()
                }
            ),
            format!(
                "{:?}",
                MachineConfigSpec {
                    yaml_marshalled: bytes.clone()
                }
            ),
            format!("{:?}", UniqueMachineTokenSpec { token: CANARY.into() }),
        ];
        let as_numbers = format!("{:?}", &bytes[..4]);
        let as_numbers = as_numbers.trim_matches(['[', ']']);
        for text in printed {
            assert!(!text.contains(CANARY) && !text.contains(as_numbers), "{text}");
        }
    }
}
