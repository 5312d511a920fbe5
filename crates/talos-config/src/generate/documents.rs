//! The documents beside the v1alpha1 one.

use serde_json::{Value, json};

use super::input::{ClusterInput, ExtensionService, Hostname, Link, MachineInput, NetworkForm, Registry, Role, UserVolume};

/// All documents but the first, in the order upstream generates and people expect: registries, hostname, network, the rest.
pub fn all(cluster: &ClusterInput, machine: &MachineInput) -> Vec<Value> {
    let contract = cluster.contract();
    let mut documents = Vec::new();
    if contract.has_network_documents() {
        documents.extend(registries(cluster));
        documents.push(hostname(&machine.hostname));
    }
    if contract.has_kubespan_document() {
        documents.extend(
            cluster
                .kubespan
                .map(|enabled| document("KubeSpanConfig", None, json!({ "enabled": enabled }))),
        );
    }
    if cluster.network_form == NetworkForm::Documents {
        documents.extend(machine.links.iter().flat_map(|link| link_documents(link, machine.role)));
        documents.extend(resolvers(cluster));
        documents.extend(time_servers(cluster));
    }
    documents.extend(machine.ephemeral_max_size.as_ref().map(|size| ephemeral(size)));
    documents.extend(machine.user_volumes.iter().map(user_volume));
    documents.extend(machine.extension_services.iter().map(extension_service));
    documents
}

fn document(kind: &str, name: Option<&str>, fields: Value) -> Value {
    let mut document = json!({ "apiVersion": "v1alpha1", "kind": kind });
    if let Some(name) = name {
        document["name"] = json!(name);
    }
    if let (Value::Object(entries), Value::Object(fields)) = (&mut document, fields) {
        entries.extend(fields);
    }
    document
}

fn hostname(hostname: &Hostname) -> Value {
    let fields = match hostname {
        Hostname::Automatic => json!({ "auto": "stable" }),
        Hostname::Static(name) => json!({ "auto": "off", "hostname": name }),
    };
    document("HostnameConfig", None, fields)
}

/// Sorted by kind, then by host.
fn registries(cluster: &ClusterInput) -> Vec<Value> {
    let each = |make: fn(&str, &Registry) -> Option<Value>| {
        cluster
            .registries
            .iter()
            .filter_map(move |(host, registry)| make(host, registry))
    };
    each(registry_auth)
        .chain(each(registry_mirror))
        .chain(each(registry_tls))
        .collect()
}

fn registry_mirror(host: &str, registry: &Registry) -> Option<Value> {
    let endpoints: Vec<Value> = registry
        .endpoints
        .iter()
        .map(|url| json!({ "url": super::bare_url(url) }))
        .collect();
    let mut fields = json!({ "endpoints": endpoints });
    if registry.skip_fallback {
        fields["skipFallback"] = json!(true);
    }
    (!endpoints.is_empty()).then(|| document("RegistryMirrorConfig", Some(host), fields))
}

fn registry_auth(host: &str, registry: &Registry) -> Option<Value> {
    let login = registry.login.as_ref()?;
    let fields = json!({ "username": login.username, "password": login.password });
    Some(document("RegistryAuthConfig", Some(host), fields))
}

fn registry_tls(host: &str, registry: &Registry) -> Option<Value> {
    let ca = registry.ca.as_ref()?;
    Some(document("RegistryTLSConfig", Some(host), json!({ "ca": ca })))
}

/// The alias binds the MAC to a name; all else refers to that name.
fn link_documents(link: &Link, role: Role) -> Vec<Value> {
    let selector = format!("mac(link.permanent_addr) == {:?}", link.mac);
    let mut documents = vec![
        document(
            "LinkAliasConfig",
            Some(&link.alias),
            json!({ "selector": { "match": selector } }),
        ),
        document("LinkConfig", Some(&link.alias), link_fields(link)),
    ];
    if link.dhcp {
        documents.push(document("DHCPv4Config", Some(&link.alias), json!({})));
    }
    if let (Some(vip), Role::ControlPlane) = (link.vip, role) {
        documents.push(document(
            "Layer2VIPConfig",
            Some(&vip.to_string()),
            json!({ "link": link.alias }),
        ));
    }
    documents
}

fn link_fields(link: &Link) -> Value {
    let mut fields = json!({});
    if let Some(mtu) = link.mtu {
        fields["mtu"] = json!(mtu);
    }
    if !link.addresses.is_empty() {
        fields["addresses"] = link
            .addresses
            .iter()
            .map(|address| json!({ "address": address.to_string() }))
            .collect();
    }
    let default = link.gateways.iter().map(|gateway| json!({ "gateway": gateway.to_string() }));
    let further = link
        .routes
        .iter()
        .map(|route| json!({ "destination": route.destination.to_string(), "gateway": route.gateway.to_string() }));
    let routes: Vec<Value> = default.chain(further).collect();
    if !routes.is_empty() {
        fields["routes"] = json!(routes);
    }
    fields
}

fn resolvers(cluster: &ClusterInput) -> Option<Value> {
    let servers: Vec<Value> = cluster
        .nameservers
        .iter()
        .map(|address| json!({ "address": address.to_string() }))
        .collect();
    (!servers.is_empty()).then(|| document("ResolverConfig", None, json!({ "nameservers": servers })))
}

fn time_servers(cluster: &ClusterInput) -> Option<Value> {
    let servers = &cluster.time_servers;
    (!servers.is_empty()).then(|| document("TimeSyncConfig", None, json!({ "ntp": { "servers": servers } })))
}

fn ephemeral(max_size: &str) -> Value {
    document(
        "VolumeConfig",
        Some("EPHEMERAL"),
        json!({ "provisioning": { "maxSize": max_size } }),
    )
}

fn user_volume(volume: &UserVolume) -> Value {
    let provisioning = json!({
        "diskSelector": { "match": format!("disk.serial == {:?}", volume.serial) },
        "minSize": volume.min_size,
        "grow": true,
    });
    document(
        "UserVolumeConfig",
        Some(&volume.name),
        json!({ "provisioning": provisioning }),
    )
}

fn extension_service(service: &ExtensionService) -> Value {
    let mut fields = json!({});
    let files = service
        .files
        .iter()
        .map(|file| json!({ "content": file.content, "mountPath": file.mount_path }));
    let files: Vec<Value> = files.collect();
    if !files.is_empty() {
        fields["configFiles"] = json!(files);
    }
    if !service.environment.is_empty() {
        fields["environment"] = json!(service.environment);
    }
    document("ExtensionServiceConfig", Some(&service.name), fields)
}
