//! How long reading and checking a file takes. The goal is 50 ms for 1000 machines.

use std::fmt::Write as _;

use mainstay_spec::{Environment, load};

fn main() {
    divan::main();
}

/// `machines` machines, every tenth of them with an exception of its own.
fn file(machines: u32) -> String {
    let mut text = String::from(
        "name: bench\ndatacenter: { endpoint: https://pve.lan }\n\
         network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1, vip: 10.0.0.2, pods: 10.128.0.0/10 }\npools:\n",
    );
    let workers = machines - 3;
    text.push_str("  control-plane: { count: 3, addresses: 10.0.0.11+, vmids: 2000+ }\n");
    let _ = writeln!(
        text,
        "  worker: {{ count: {workers}, addresses: 10.0.16.1+, vmids: 10000+, hosts: [pve1, pve2], labels: {{ a: b }} }}"
    );
    text.push_str("machines:\n");
    for ordinal in (1..=workers).step_by(10) {
        let _ = writeln!(text, "  bench-worker-{ordinal}: {{ host: pve3, cpu: 16, memory: 32GiB }}");
    }
    text
}

#[divan::bench(args = [10, 100, 1000, 5000])]
fn reading_and_checking(bencher: divan::Bencher<'_, '_>, machines: u32) {
    let text = file(machines);
    bencher.bench(|| load(divan::black_box(&text), "cluster.yaml", &Environment::default(), &|_| None).is_ok());
}

#[divan::bench(args = [1000])]
fn every_machine_an_exception(bencher: divan::Bencher<'_, '_>, machines: u32) {
    let mut text = file(machines);
    text.truncate(text.find("machines:").unwrap_or(text.len()));
    text.push_str("machines:\n");
    for ordinal in 1..=machines - 3 {
        let _ = writeln!(
            text,
            "  bench-worker-{ordinal}: {{ host: pve3, cpu: 16, memory: 32GiB, vmid: {} }}",
            20_000 + ordinal
        );
    }
    bencher.bench(|| load(divan::black_box(&text), "cluster.yaml", &Environment::default(), &|_| None).is_ok());
}
