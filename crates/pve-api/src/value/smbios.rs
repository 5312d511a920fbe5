//! What the guest reads in its SMBIOS tables.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use uuid::Uuid;

use super::ValueError;
use super::loose::{deserialize_from_text, parse_flag};
use super::property::{self, Properties};

/// The type 1 (system) table. A change must carry the UUID: without it PVE drops the one there is.
///
/// Texts are sent as base64, since PVE takes little else in them. The whole may have 512 characters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Smbios {
    pub uuid: Option<Uuid>,
    pub manufacturer: Option<String>,
    pub product: Option<String>,
    pub version: Option<String>,
    pub serial: Option<String>,
    pub sku: Option<String>,
    pub family: Option<String>,
}

impl Smbios {
    pub fn of(uuid: Uuid) -> Self {
        Self {
            uuid: Some(uuid),
            ..Self::default()
        }
    }

    fn texts(&self) -> [(&'static str, &Option<String>); 6] {
        [
            ("manufacturer", &self.manufacturer),
            ("product", &self.product),
            ("version", &self.version),
            ("serial", &self.serial),
            ("sku", &self.sku),
            ("family", &self.family),
        ]
    }
}

impl fmt::Display for Smbios {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pairs: BTreeMap<String, String> = BTreeMap::new();
        for (key, text) in self.texts() {
            if let Some(text) = text {
                pairs.insert(key.to_owned(), STANDARD.encode(text));
            }
        }
        if !pairs.is_empty() {
            pairs.insert("base64".to_owned(), "1".to_owned());
        }
        let first = self.uuid.map(|uuid| format!("uuid={uuid}")).unwrap_or_default();
        f.write_str(&property::print(&first, &pairs))
    }
}

impl FromStr for Smbios {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        const EXPECTED: &str = "an SMBIOS description";
        let mut properties = Properties::parse(text, EXPECTED)?;
        let error = || ValueError::new(EXPECTED, text);
        let encoded = properties.take_as("base64", parse_flag).unwrap_or_default();
        let mut take = |key: &str| match properties.take(key) {
            Some(value) if encoded => decode(&value).map(Some).ok_or_else(error),
            value => Ok(value),
        };
        let smbios = Self {
            uuid: None,
            manufacturer: take("manufacturer")?,
            product: take("product")?,
            version: take("version")?,
            serial: take("serial")?,
            sku: take("sku")?,
            family: take("family")?,
        };
        let uuid = properties.take_as("uuid", |text| Uuid::try_parse(text).ok());
        let all_read = properties.pairs.is_empty() && properties.bare.is_none();
        if all_read { Ok(Self { uuid, ..smbios }) } else { Err(error()) }
    }
}

deserialize_from_text!(Smbios);

fn decode(value: &str) -> Option<String> {
    // An empty text cannot be told from an absent one by PVE's own reader.
    String::from_utf8(STANDARD.decode(value).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::Smbios;

    #[test]
    fn a_plain_uuid_is_read_and_printed() {
        let text = "uuid=c20c97ec-a132-43c4-ac2d-2cf607efe1ac";
        let smbios: Smbios = text.parse().unwrap();
        assert_eq!(smbios.to_string(), text);
        assert_eq!(smbios, Smbios::of(uuid::uuid!("c20c97ec-a132-43c4-ac2d-2cf607efe1ac")));
    }

    #[test]
    fn texts_are_base64() {
        let smbios = Smbios {
            serial: Some("ds=nocloud;s=http://10.0.0.1/cfg/".to_owned()),
            ..Smbios::default()
        };
        assert_eq!(
            smbios.to_string(),
            "base64=1,serial=ZHM9bm9jbG91ZDtzPWh0dHA6Ly8xMC4wLjAuMS9jZmcv"
        );
        assert_eq!(smbios.to_string().parse::<Smbios>().unwrap(), smbios);
    }

    #[test]
    fn texts_without_the_flag_are_plain() {
        let smbios: Smbios = "uuid=c20c97ec-a132-43c4-ac2d-2cf607efe1ac,product=abc".parse().unwrap();
        assert_eq!(smbios.product.as_deref(), Some("abc"));
    }

    #[test]
    fn what_is_no_smbios_is_refused() {
        for text in ["uuid=xyz", "base64=1,serial=***", "foo=1", "bare"] {
            assert!(text.parse::<Smbios>().is_err(), "{text}");
        }
    }
}
