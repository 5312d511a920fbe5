//! Image Factory schematics: the canonical text, whose hash is the id, and the names of what is built from it.

use std::fmt;

use semver::Version;
use sha2::{Digest, Sha256};

use crate::yaml::{self, LegacyQuotes, Map, Node, Scalar, Value};

/// What goes into a boot image.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Schematic {
    pub owner: String,
    pub overlay: Option<Overlay>,
    pub customization: Customization,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Customization {
    /// A machine config that the image carries, from Talos 1.12.
    pub embedded_machine_configuration: String,
    pub extra_kernel_args: Vec<String>,
    pub meta: Vec<MetaValue>,
    /// As `siderolabs/<name>`. The order is part of the id: sort before asking for one.
    pub official_extensions: Vec<String>,
    pub bootloader: Option<Bootloader>,
    pub secureboot: SecureBoot,
    /// Bytes; zero for the default.
    pub sector_size: u64,
}

/// A value baked into the image's META partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaValue {
    pub key: u8,
    pub value: String,
}

#[derive(Clone, Default, PartialEq)]
pub struct Overlay {
    pub image: String,
    pub name: String,
    options: Map,
}

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overlay")
            .field("image", &self.image)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bootloader {
    DualBoot,
    SdBoot,
    Grub,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecureBoot {
    pub enroll_keys: Option<EnrollKeys>,
    pub include_well_known_certificates: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnrollKeys {
    Off,
    Manual,
    IfSafe,
    Force,
}

/// Why a schematic was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct SchematicError {
    pub line: usize,
    pub problem: String,
}

impl Schematic {
    /// A schematic with these extensions, named with or without `siderolabs/`, and nothing else.
    pub fn with_extensions<S: AsRef<str>>(extensions: impl IntoIterator<Item = S>) -> Self {
        let full = |name: &str| {
            if name.contains('/') {
                name.to_owned()
            } else {
                format!("siderolabs/{name}")
            }
        };
        let mut official_extensions: Vec<String> = extensions.into_iter().map(|name| full(name.as_ref())).collect();
        official_extensions.sort_unstable();
        official_extensions.dedup();
        Self {
            customization: Customization {
                official_extensions,
                ..Customization::default()
            },
            ..Self::default()
        }
    }

    pub fn parse(text: &str) -> Result<Self, SchematicError> {
        let root = yaml::parse(text).map_err(|error| SchematicError {
            line: error.line,
            problem: error.problem,
        })?;
        let top = Section::new(&root, "schematic.Schematic", &["owner", "overlay", "customization"])?;
        let overlay = top.section("overlay", "schematic.Overlay", &["image", "name", "options"])?;
        Ok(Self {
            owner: top.text("owner")?,
            overlay: overlay.map(|overlay| Overlay::read(&overlay)).transpose()?,
            customization: Customization::read(&top)?,
        })
    }

    /// The bytes that the Image Factory stores and hashes.
    pub fn canonical(&self) -> String {
        let mut root = Map::new();
        put_text(&mut root, "owner", &self.owner);
        if let Some(overlay) = self.overlay.as_ref().map(Overlay::node).filter(|overlay| !overlay.is_zero()) {
            root.insert("overlay".to_owned(), overlay);
        }
        root.insert("customization".to_owned(), self.customization.node());
        yaml::emit_with(&Value::Map(root).into(), LegacyQuotes::Single)
    }

    pub fn id(&self) -> String {
        hex::encode(Sha256::digest(self.canonical()))
    }
}

impl Overlay {
    fn read(section: &Section<'_>) -> Result<Self, SchematicError> {
        let mut options = section.node("options").and_then(Node::as_map).cloned().unwrap_or_default();
        sort_keys(&mut options);
        Ok(Self {
            image: section.text("image")?,
            name: section.text("name")?,
            options,
        })
    }

    fn node(&self) -> Node {
        let mut entries = Map::new();
        put_text(&mut entries, "image", &self.image);
        put_text(&mut entries, "name", &self.name);
        put(&mut entries, "options", Value::Map(self.options.clone()).into());
        Value::Map(entries).into()
    }
}

fn sort_keys(entries: &mut Map) {
    entries.sort_keys();
    entries.values_mut().filter_map(Node::as_map_mut).for_each(sort_keys);
}

const CUSTOMIZATION: &[&str] = &[
    "embeddedMachineConfiguration",
    "extraKernelArgs",
    "meta",
    "systemExtensions",
    "bootloader",
    "secureboot",
    "diskImage",
];

impl Customization {
    fn read(top: &Section<'_>) -> Result<Self, SchematicError> {
        let Some(section) = top.section("customization", "schematic.Customization", CUSTOMIZATION)? else {
            return Ok(Self::default());
        };
        let extensions = section.section("systemExtensions", "schematic.SystemExtensions", &["officialExtensions"])?;
        let disk_image = section.section("diskImage", "schematic.DiskImage", &["sectorSize"])?;
        Ok(Self {
            embedded_machine_configuration: section.text("embeddedMachineConfiguration")?,
            extra_kernel_args: section.texts("extraKernelArgs")?,
            meta: section.items("meta").iter().map(MetaValue::read).collect::<Result<_, _>>()?,
            official_extensions: extensions
                .map(|found| found.texts("officialExtensions"))
                .transpose()?
                .unwrap_or_default(),
            bootloader: Bootloader::read(&section)?,
            secureboot: SecureBoot::read(&section)?,
            sector_size: disk_image
                .map(|found| found.number("sectorSize"))
                .transpose()?
                .unwrap_or_default(),
        })
    }

    fn node(&self) -> Node {
        let texts = |items: &[String]| Node::from(Value::List(items.iter().map(Node::text).collect()));
        let mut entries = Map::new();
        put_text(
            &mut entries,
            "embeddedMachineConfiguration",
            &self.embedded_machine_configuration,
        );
        put(&mut entries, "extraKernelArgs", texts(&self.extra_kernel_args));
        put(
            &mut entries,
            "meta",
            Value::List(self.meta.iter().map(MetaValue::node).collect()).into(),
        );
        let mut extensions = Map::new();
        put(&mut extensions, "officialExtensions", texts(&self.official_extensions));
        put(&mut entries, "systemExtensions", Value::Map(extensions).into());
        put_text(&mut entries, "bootloader", self.bootloader.map_or("", Bootloader::as_str));
        put(&mut entries, "secureboot", self.secureboot.node());
        let mut disk_image = Map::new();
        put(
            &mut disk_image,
            "sectorSize",
            Value::Scalar(Scalar::int(self.sector_size.into())).into(),
        );
        put(&mut entries, "diskImage", Value::Map(disk_image).into());
        Value::Map(entries).into()
    }
}

impl MetaValue {
    fn read(node: &Node) -> Result<Self, SchematicError> {
        let section = Section::new(node, "schematic.MetaValue", &["key", "value"])?;
        let key = section.number("key")?;
        let key = u8::try_from(key).map_err(|_| section.error("key", format!("cannot construct !!int `{key}` into uint8")))?;
        Ok(Self {
            key,
            value: section.text("value")?,
        })
    }

    fn node(&self) -> Node {
        let entries = [
            ("key".to_owned(), Value::Scalar(Scalar::int(self.key.into())).into()),
            ("value".to_owned(), Node::text(&self.value)),
        ];
        Value::Map(Map::from_iter(entries)).into()
    }
}

impl Bootloader {
    fn as_str(self) -> &'static str {
        match self {
            Self::DualBoot => "dual-boot",
            Self::SdBoot => "sd-boot",
            Self::Grub => "grub",
        }
    }

    fn read(section: &Section<'_>) -> Result<Option<Self>, SchematicError> {
        match section.text("bootloader")?.as_str() {
            "" | "none" => Ok(None),
            "dual-boot" => Ok(Some(Self::DualBoot)),
            "sd-boot" => Ok(Some(Self::SdBoot)),
            "grub" => Ok(Some(Self::Grub)),
            other => Err(section.error("bootloader", format!("{other} does not belong to BootloaderKind values"))),
        }
    }
}

impl SecureBoot {
    fn read(parent: &Section<'_>) -> Result<Self, SchematicError> {
        let known = &["enrollKeys", "includeWellKnownCertificates"];
        let Some(section) = parent.section("secureboot", "schematic.SecureBootCustomization", known)? else {
            return Ok(Self::default());
        };
        Ok(Self {
            enroll_keys: EnrollKeys::read(&section)?,
            include_well_known_certificates: section.flag("includeWellKnownCertificates")?,
        })
    }

    fn node(&self) -> Node {
        let mut entries = Map::new();
        put_text(&mut entries, "enrollKeys", self.enroll_keys.map_or("", EnrollKeys::as_str));
        let well_known = Scalar::bool(self.include_well_known_certificates);
        put(&mut entries, "includeWellKnownCertificates", Value::Scalar(well_known).into());
        Value::Map(entries).into()
    }
}

impl EnrollKeys {
    fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Manual => "manual",
            Self::IfSafe => "if-safe",
            Self::Force => "force",
        }
    }

    fn read(section: &Section<'_>) -> Result<Option<Self>, SchematicError> {
        match section.text("enrollKeys")?.as_str() {
            "" => Ok(None),
            "off" => Ok(Some(Self::Off)),
            "manual" => Ok(Some(Self::Manual)),
            "if-safe" => Ok(Some(Self::IfSafe)),
            "force" => Ok(Some(Self::Force)),
            other => Err(section.error("enrollKeys", format!("{other} does not belong to SDBootEnrollKeys values"))),
        }
    }
}

fn put(entries: &mut Map, key: &str, value: Node) {
    if !value.is_zero() {
        entries.insert(key.to_owned(), value);
    }
}

fn put_text(entries: &mut Map, key: &str, text: &str) {
    put(entries, key, Node::text(text));
}

/// A mapping with known keys; null stands for an empty one.
struct Section<'a> {
    node: &'a Node,
}

impl<'a> Section<'a> {
    fn new(node: &'a Node, type_name: &str, known: &[&str]) -> Result<Self, SchematicError> {
        let error = |line, problem| Err(SchematicError { line, problem });
        match &node.value {
            Value::Map(entries) => match entries.iter().find(|(key, _)| !known.contains(&key.as_str())) {
                Some((key, value)) => error(value.key_line, format!("field {key} not found in type {type_name}")),
                None => Ok(Self { node }),
            },
            Value::Scalar(_) if node.is_null() => Ok(Self { node }),
            Value::Scalar(_) | Value::List(_) => error(node.line, format!("{type_name} must be a mapping")),
        }
    }

    fn node(&self, key: &str) -> Option<&'a Node> {
        self.node.get(key).filter(|found| !found.is_null())
    }

    fn section(&self, key: &str, type_name: &str, known: &[&str]) -> Result<Option<Self>, SchematicError> {
        self.node(key).map(|found| Section::new(found, type_name, known)).transpose()
    }

    fn error(&self, key: &str, problem: String) -> SchematicError {
        let line = self.node.get(key).map_or(self.node.line, |found| found.line);
        SchematicError { line, problem }
    }

    fn text(&self, key: &str) -> Result<String, SchematicError> {
        let Some(found) = self.node(key) else {
            return Ok(String::new());
        };
        found
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| self.error(key, format!("{key} must be a string")))
    }

    fn items(&self, key: &str) -> &'a [Node] {
        self.node(key).and_then(Node::as_list).unwrap_or_default()
    }

    fn texts(&self, key: &str) -> Result<Vec<String>, SchematicError> {
        let text = |item: &Node| item.as_str().map(str::to_owned);
        let texts: Option<Vec<String>> = self.items(key).iter().map(text).collect();
        let is_list = self.node(key).is_none_or(|found| found.as_list().is_some());
        texts
            .filter(|_| is_list)
            .ok_or_else(|| self.error(key, format!("{key} must be a list of strings")))
    }

    fn number(&self, key: &str) -> Result<u64, SchematicError> {
        let Some(found) = self.node(key) else { return Ok(0) };
        let number = found.as_int().and_then(|number| u64::try_from(number).ok());
        number.ok_or_else(|| self.error(key, format!("{key} must be a number")))
    }

    fn flag(&self, key: &str) -> Result<bool, SchematicError> {
        let Some(found) = self.node(key) else { return Ok(false) };
        found
            .as_bool()
            .ok_or_else(|| self.error(key, format!("{key} must be true or false")))
    }
}

/// Where an image is made to run. It decides where a node looks for its network and what its cards are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Platform {
    Nocloud,
    Metal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arch {
    Amd64,
    Arm64,
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nocloud => "nocloud",
            Self::Metal => "metal",
        })
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        })
    }
}

/// What is built from a schematic for one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assets {
    pub schematic: String,
    pub talos: Version,
    pub platform: Platform,
    pub arch: Arch,
    pub secureboot: bool,
}

impl Assets {
    /// `nocloud-amd64.qcow2`
    pub fn disk_image(&self) -> String {
        format!("{}-{}{}.qcow2", self.platform, self.arch, self.suffix())
    }

    /// Where the factory serves the disk image, relative to its address.
    pub fn disk_image_path(&self) -> String {
        format!("/image/{}/v{}/{}", self.schematic, self.talos, self.disk_image())
    }

    /// The image reference for `machine.install.image` and for upgrades. The platform is baked into it.
    pub fn installer(&self, factory_host: &str) -> String {
        format!(
            "{factory_host}/{}-installer{}/{}:v{}",
            self.platform,
            self.suffix(),
            self.schematic,
            self.talos
        )
    }

    fn suffix(&self) -> &'static str {
        if self.secureboot { "-secureboot" } else { "" }
    }
}
