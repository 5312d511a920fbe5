//! The simulated world: guests, Kubernetes, an Image Factory, a jump host and bad days.

mod charts;
mod cloud;
mod factory;
mod ground;
mod kube;
mod path;
mod pki;
mod spec;
mod talos;
mod timing;
mod witness;
mod world;
mod yaml;

pub use charts::ChartFaults;
pub use cloud::{CloudImage, WebFaults};
pub use factory::{Factory, FactoryFaults, TalosImage};
pub use path::{CriticalPath, Shape};
pub use spec::{GuestSpec, SpecError, WorldSpec};
pub use talos::NodeFaults;
pub use timing::{CloudTiming, Timing};
pub use witness::{Deed, Standing, Struck, Witness};
pub use world::{JumpHost, Mode, Places, World, WorldError};
