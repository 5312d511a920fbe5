//! Compiles the `.proto` files in pure Rust: building needs no `protoc`.

use std::error::Error;

/// Where every import path starts.
const ROOT: &str = "proto";

const FILES: [&str; 24] = [
    "cluster/cluster.proto",
    "common/common.proto",
    "cosi/meta.proto",
    "cosi/resource.proto",
    "cosi/state.proto",
    "inspect/inspect.proto",
    "machine/image.proto",
    "machine/lifecycle.proto",
    "machine/machine.proto",
    "security/security.proto",
    "storage/storage.proto",
    "time/time.proto",
    "talos/resource/block.proto",
    "talos/resource/cluster.proto",
    "talos/resource/config.proto",
    "talos/resource/enums.proto",
    "talos/resource/etcd.proto",
    "talos/resource/extensions.proto",
    "talos/resource/hardware.proto",
    "talos/resource/k8s.proto",
    "talos/resource/network.proto",
    "talos/resource/runtime.proto",
    "talos/resource/time.proto",
    "talos/resource/v1alpha1.proto",
];

/// Messages that may carry keys or tokens. Their `Debug` is written by hand, in `redacted.rs`.
const SECRET: [&str; 10] = [
    "common.Data",
    "common.PEMEncodedCertificateAndKey",
    "common.PEMEncodedKey",
    "cosi.resource.Spec",
    "machine.ApplyConfigurationRequest",
    "machine.GenerateClientConfiguration",
    "machine.ImageServiceCredentials",
    "machine.MetaWriteRequest",
    "talos.resource.config.MachineConfigSpec",
    "talos.resource.definitions.runtime.UniqueMachineTokenSpec",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={ROOT}");
    let descriptors = protox::compile(FILES, [ROOT])?;
    tonic_prost_build::configure()
        .build_transport(false)
        .generate_default_stubs(true)
        .btree_map(".")
        .skip_debug(SECRET)
        .include_file("talos_proto.rs")
        .compile_fds(descriptors)?;
    Ok(())
}
