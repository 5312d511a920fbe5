//! Network devices under `/sys/class/net`.

use std::sync::Arc;

use super::host::Host;

pub(crate) fn describe(host: &Arc<Host>) {
    let now = host.now();
    let named: Vec<(String, String)> = {
        let state = host.lock();
        let cards = host.hardware.nics.iter().enumerate();
        cards
            .map(|(index, nic)| {
                let name = state
                    .addresses
                    .get(index)
                    .map_or_else(|| format!("ens{}", 18 + index), |(name, _)| name.clone());
                (name, nic.mac.to_ascii_lowercase())
            })
            .collect()
    };
    for (name, mac) in named {
        // A card has a device behind it; bridges and loopback have none.
        let device = format!("/sys/class/net/{name}/device/driver_override");
        host.fs.install(&device, "(null)\n", 0o644, now);
        host.fs
            .install(&format!("/sys/class/net/{name}/address"), format!("{mac}\n"), 0o444, now);
        host.fs
            .install(&format!("/sys/class/net/{name}/operstate"), "up\n", 0o444, now);
    }
    host.fs
        .install("/sys/class/net/lo/address", "00:00:00:00:00:00\n", 0o444, now);
}
