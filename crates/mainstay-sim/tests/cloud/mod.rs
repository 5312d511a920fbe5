//! Guests that boot from a cloud image: first boot, SSH, and RKE2 or k3s on them.

mod clusters;
mod first_boot;
mod lab;
mod rules;
