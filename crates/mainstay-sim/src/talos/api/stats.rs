//! What a machine says about its memory, processes and disks: plausible, and always the same for the same machine.

use talos_proto::machine;

/// Sizes in KiB, as the kernel writes them, in the proportions of a small node.
pub(super) fn memory(total: u64) -> machine::MemInfo {
    let part = |hundredths: u64| total * hundredths / 100;
    machine::MemInfo {
        memtotal: total,
        memfree: part(40),
        memavailable: part(60),
        buffers: part(1),
        cached: part(22),
        active: part(18),
        inactive: part(20),
        activeanon: part(6),
        inactiveanon: part(8),
        activefile: part(12),
        inactivefile: part(12),
        unevictable: part(1),
        mlocked: part(1),
        dirty: 976,
        anonpages: part(12),
        mapped: part(4),
        shmem: part(2),
        slab: part(6),
        sreclaimable: part(4),
        sunreclaim: part(2),
        kernelstack: 8_192,
        pagetables: 16_384,
        commitlimit: part(50),
        committedas: part(60),
        vmalloctotal: 34_359_738_367,
        vmallocused: 27_064,
        anonhugepages: 98_304,
        hugepagesize: 2_048,
        directmap4k: 28_672,
        directmap2m: part(10),
        directmap1g: part(90),
        ..machine::MemInfo::default()
    }
}
