//! Machine configs compared.

use crate::cluster::ConfigChange;
use crate::observed::Config;
use crate::step::Apply;

/// How a running config must change, if it must.
pub(crate) fn compare(current: &Config, wanted: &Config) -> Option<ConfigChange> {
    if current == wanted {
        return None;
    }
    Some(ConfigChange {
        how: Apply::Reboot,
        text: "its config differs".to_owned(),
    })
}
