//! Schematics: their canonical form, whose SHA-256 is their name.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::yaml;

/// A schematic as posted, unknown fields refused.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Schematic {
    owner: String,
    overlay: Overlay,
    customization: Customization,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
struct Overlay {
    image: String,
    name: String,
    options: Map<String, Value>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Customization {
    embedded_machine_configuration: String,
    extra_kernel_args: Vec<String>,
    meta: Vec<Meta>,
    system_extensions: SystemExtensions,
    bootloader: Bootloader,
    secureboot: Secureboot,
    disk_image: DiskImage,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Meta {
    key: u8,
    value: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct SystemExtensions {
    official_extensions: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum Bootloader {
    #[default]
    None,
    DualBoot,
    SdBoot,
    Grub,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Secureboot {
    enroll_keys: String,
    include_well_known_certificates: bool,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct DiskImage {
    sector_size: u32,
}

impl Schematic {
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        serde_saphyr::from_str(text).map_err(|error| error.to_string())
    }

    pub fn extensions(&self) -> &[String] {
        &self.customization.system_extensions.official_extensions
    }

    pub fn id(&self) -> String {
        hex::encode(Sha256::digest(self.canonical().as_bytes()))
    }

    pub fn canonical(&self) -> String {
        let mut root = Map::new();
        put(&mut root, "owner", json!(self.owner));
        put(&mut root, "overlay", self.overlay.value());
        root.insert("customization".to_owned(), self.customization.value());
        yaml::emit(&Value::Object(root))
    }
}

/// Everything but `customization` is left out when it is empty.
fn put(map: &mut Map<String, Value>, key: &str, value: Value) {
    let empty = match &value {
        Value::Null => true,
        Value::Bool(set) => !set,
        Value::Number(number) => number.as_u64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    };
    if !empty {
        map.insert(key.to_owned(), value);
    }
}

impl Overlay {
    fn value(&self) -> Value {
        let mut map = Map::new();
        put(&mut map, "image", json!(self.image));
        put(&mut map, "name", json!(self.name));
        put(&mut map, "options", Value::Object(self.options.clone()));
        Value::Object(map)
    }
}

impl Customization {
    fn value(&self) -> Value {
        let meta: Vec<Value> = self
            .meta
            .iter()
            .map(|meta| json!({"key": meta.key, "value": meta.value}))
            .collect();
        let mut extensions = Map::new();
        put(
            &mut extensions,
            "officialExtensions",
            json!(self.system_extensions.official_extensions),
        );
        let mut secureboot = Map::new();
        put(&mut secureboot, "enrollKeys", json!(self.secureboot.enroll_keys));
        put(
            &mut secureboot,
            "includeWellKnownCertificates",
            json!(self.secureboot.include_well_known_certificates),
        );
        let mut disk = Map::new();
        put(&mut disk, "sectorSize", json!(self.disk_image.sector_size));
        let mut map = Map::new();
        put(
            &mut map,
            "embeddedMachineConfiguration",
            json!(self.embedded_machine_configuration),
        );
        put(&mut map, "extraKernelArgs", json!(self.extra_kernel_args));
        put(&mut map, "meta", Value::Array(meta));
        put(&mut map, "systemExtensions", Value::Object(extensions));
        put(&mut map, "bootloader", json!(self.bootloader.name()));
        put(&mut map, "secureboot", Value::Object(secureboot));
        put(&mut map, "diskImage", Value::Object(disk));
        Value::Object(map)
    }
}

impl Bootloader {
    fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::DualBoot => "dual-boot",
            Self::SdBoot => "sd-boot",
            Self::Grub => "grub",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(body: &str) -> String {
        Schematic::parse(body).expect("a schematic").id()
    }

    /// Made by the Image Factory's own code, version 1.4.0.
    #[test]
    fn ids_are_those_of_the_real_factory() {
        let vectors = [
            (
                "customization: {}",
                "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba",
            ),
            ("{}", "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"),
            (
                "customization:\n  systemExtensions:\n    officialExtensions: [siderolabs/iscsi-tools, siderolabs/qemu-guest-agent, siderolabs/util-linux-tools]",
                "88d1f7a5c4f1d3aba7df787c448c1d3d008ed29cfb34af53fa0df4336a56040b",
            ),
            (
                "customization:\n  systemExtensions:\n    officialExtensions: [siderolabs/util-linux-tools, siderolabs/qemu-guest-agent, siderolabs/iscsi-tools]",
                "fef45b15f972f804081c85d5cbf386adbb33d9da0b58c36998140f58d5acbc2d",
            ),
            (
                "customization:\n  extraKernelArgs: [noapic, nolapic]",
                "9cba8e32753f91a16c1837ab8abf356af021706ef284aef07380780177d9a06c",
            ),
            (
                "customization:\n  meta:\n    - {key: 10, value: foo}\n    - {key: 12, value: \"123\"}\n    - {key: 13, value: \"true\"}",
                "79e2cbbc272fafc0636222f2c847c17e22aecdab5293c4dd47a944e5737ceb1e",
            ),
            (
                "customization:\n  meta:\n    - key: 0xa\n      value: |\n        addresses:\n          - address: 10.0.0.11/24\n            linkName: eth0\n",
                "ae7911f61d60bd1f8a99cc1a16ac415f9b3a903842f57f602c4555ed24b93e0c",
            ),
            (
                "overlay:\n  image: siderolabs/sbc-raspberrypi\n  name: rpi_generic",
                "ee21ef4a5ef808a9b7484cc0dda0f25075021691c8c09a276591eedb638ea1f9",
            ),
            (
                "customization:\n  secureboot: {enrollKeys: if-safe, includeWellKnownCertificates: true}",
                "d39b9e092a928f99168bc2ffe6b4dfb8cdb82a06fc8deedf656eaa640d229b6a",
            ),
            (
                "customization:\n  bootloader: sd-boot",
                "9ed5fecdacb36b5c5427b87d409f1065cfb2df69b0f71c58b868d9d466d8dab3",
            ),
            (
                "customization:\n  diskImage: {sectorSize: 4096}",
                "92833e9ddd9bb9e11b2464fa5525429f01866306d52ebd882ee08d7918f6d1ea",
            ),
            (
                "customization:\n  systemExtensions: {officialExtensions: [siderolabs/iscsi-tools, siderolabs/iscsi-tools]}",
                "2189d8e4f0d89b1320696817e5092710790b20097678013aac85f450b0d48cc3",
            ),
        ];
        for (body, expected) in vectors {
            assert_eq!(id(body), expected, "{body}");
        }
    }

    #[test]
    fn unknown_fields_and_bootloaders_are_refused() {
        assert!(Schematic::parse("customization:\n  nope: 1").is_err());
        assert!(Schematic::parse("customization:\n  bootloader: auto").is_err());
    }
}
