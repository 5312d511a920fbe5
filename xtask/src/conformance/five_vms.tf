terraform {
  required_providers {
    proxmox = {
      source  = "registry.terraform.io/bpg/proxmox"
      version = "0.112.0"
    }
  }
}

variable "endpoint" { type = string }
variable "token" { type = string }
variable "factory" { type = string }

provider "proxmox" {
  endpoint  = var.endpoint
  api_token = var.token
  insecure  = true
}

locals {
  # The Image Factory's id of a schematic without any customization.
  schematic = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"
}

resource "proxmox_virtual_environment_download_file" "talos" {
  content_type = "import"
  datastore_id = "local"
  node_name    = "pve1"
  file_name    = "talos-nocloud-amd64.qcow2"
  url          = "${var.factory}/image/${local.schematic}/v1.13.9/nocloud-amd64.qcow2"
}

resource "proxmox_virtual_environment_vm" "machine" {
  count           = 5
  name            = "machine-${count.index + 1}"
  node_name       = "pve1"
  vm_id           = 8001 + count.index
  tags            = ["terraform", "conformance"]
  stop_on_destroy = true
  scsi_hardware   = "virtio-scsi-single"

  cpu {
    cores = 2
    type  = "x86-64-v2-AES"
  }
  memory {
    dedicated = 2048
  }
  disk {
    datastore_id = "local-lvm"
    import_from  = proxmox_virtual_environment_download_file.talos.id
    interface    = "scsi0"
    size         = 20
  }
  initialization {
    datastore_id = "local-lvm"
    ip_config {
      ipv4 {
        address = "127.30.0.${count.index + 11}/16"
        gateway = "127.30.0.1"
      }
    }
  }
  network_device {
    bridge = "vmbr0"
  }
  operating_system {
    type = "l26"
  }
}
