//! World in, printed plan out.

mod addon_accounts;
mod addon_catalogue;
mod addon_release;
mod addon_values;
mod changes;
mod drains;
mod formats;
mod frozen;
mod half;
mod kubeconfig;
mod lints;
mod new;
mod places;
mod properties;
mod rancher;
mod removal;
mod rows;
mod settings;
mod strangers;
mod unknown;
mod upgrades;
mod versions;
mod volumes;
mod world;
