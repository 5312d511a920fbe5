"""The life of a VM as proxmoxer leads it: ENDPOINT_HOST ENDPOINT_PORT TOKEN. One line per fact, exit 1 at the first that is not so."""

import io
import sys

from proxmoxer import ProxmoxAPI, ResourceException
from proxmoxer.tools import Tasks

NODE, VM, COPY = "pve1", 9100, 9101


def expect(what, got, wanted):
    if got != wanted:
        sys.exit(f"{what}: expected {wanted!r}, got {got!r}")
    print(what)


def done(api, what, upid):
    task = Tasks.blocking_status(api, upid, timeout=60, polling_interval=0.05)
    expect(f"task: {what}", task and task.get("exitstatus"), "OK")


def main(host, port, token):
    user, rest = token.split("!")
    name, value = rest.split("=")
    api = ProxmoxAPI(host, port=int(port), user=user, token_name=name, token_value=value, verify_ssl=False, timeout=30)
    node = api.nodes(NODE)

    expect("version", api.version.get()["version"].split(".")[0], "9")
    expect("nodes", NODE in [n["node"] for n in api.nodes.get()], True)
    expect("status of a node", node.status.get()["cpuinfo"]["cpus"] > 0, True)

    iso = io.BytesIO(b"\0" * 32768 + b"\1CD001\1" + b"\0" * 4096)
    iso.name = "small.iso"
    done(api, "upload", node.storage("local").upload.post(content="iso", filename=iso))
    volumes = {v["volid"]: v["size"] for v in node.storage("local").content.get(content="iso")}
    expect("content list", volumes.get("local:iso/small.iso"), 32768 + 7 + 4096)

    created = node.qemu.post(
        vmid=VM, name="conformance", memory=2048, cores=2, scsihw="virtio-scsi-single", scsi0="local-lvm:8",
        ide2="local:iso/small.iso,media=cdrom", net0="virtio,bridge=vmbr0", ostype="l26", tags="one;two",
    )
    done(api, "create", created)
    vm = node.qemu(VM)
    config = vm.config.get()
    expect("name in the config", config["name"], "conformance")
    expect("disk in the config", config["scsi0"].startswith("local-lvm:vm-9100-disk-0,"), True)
    vm.config.put(cores=4, description="two\nlines", digest=config["digest"])
    changed = vm.config.get()
    expect("changed config", (changed["cores"], changed["description"]), (4, "two\nlines"))
    try:
        vm.config.put(cores=8, digest=config["digest"])
        sys.exit("old digest: expected a refusal, got none")
    except ResourceException as refusal:
        expect("old digest refused", refusal.status_code, 500)
    done(api, "config in a task", vm.config.post(memory=4096))
    done(api, "resize", vm.resize.put(disk="scsi0", size="+2G"))

    done(api, "start", vm.status.start.post())
    expect("running", vm.status.current.get()["status"], "running")
    done(api, "stop", vm.status.stop.post())
    expect("stopped", vm.status.current.get()["status"], "stopped")

    done(api, "clone", vm.clone.post(newid=COPY, name="copy", full=1, storage="local-lvm"))
    expect("clone in the config", node.qemu(COPY).config.get()["name"], "copy")
    for vmid in (COPY, VM):
        done(api, f"delete {vmid}", node.qemu(vmid).delete(purge=1))
    try:
        node.qemu(VM).config.get()
        sys.exit("deleted VM: expected a refusal, got a config")
    except ResourceException as refusal:
        expect("deleted VM", refusal.status_code, 500)
    done(api, "delete the upload", node.storage("local").content("local:iso/small.iso").delete())
    expect("tasks", {"qmcreate", "qmstart", "qmstop", "qmclone", "qmdestroy", "imgcopy"} - {t["type"] for t in node.tasks.get()}, set())


main(*sys.argv[1:])
