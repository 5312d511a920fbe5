//! Serving certificates that kubelets ask for.
//!
//! Kubernetes never approves these by itself: it cannot know which names and addresses are a node's. We can, for nodes that we made.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

use crate::{Cluster, Error};

const SIGNER: &str = "kubernetes.io/kubelet-serving";

/// A request without a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletCsr {
    pub name: String,
    /// The node that asked, by its own credentials.
    pub node: String,
    usages: BTreeSet<String>,
    asked: RequestedNames,
}

/// What is to be in the certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RequestedNames {
    common_name: String,
    organizations: Vec<String>,
    names: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
    /// Names of other kinds: mail addresses, URIs.
    other_names: bool,
}

/// Why a request is not approved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error("node {0} is not one of ours")]
    Foreign(String),
    #[error("the request is for `{asked}`, but node {node} asked")]
    AnotherName { node: String, asked: String },
    #[error("the request is not for the group system:nodes alone")]
    Group,
    #[error("the request wants to be used for {0}")]
    Usage(String),
    #[error("the request names no address")]
    NoNames,
    #[error("`{0}` does not belong to the node")]
    NotItsOwn(String),
    #[error("the request has names that are neither DNS names nor addresses")]
    OtherNames,
}

impl KubeletCsr {
    /// Whether a node that we made, with these addresses and its hostname, may have this certificate.
    pub fn check(&self, own_names: &BTreeSet<String>) -> Result<(), Unfit> {
        let asked = &self.asked;
        let node_name = format!("system:node:{}", self.node);
        if asked.common_name != node_name {
            return Err(Unfit::AnotherName {
                node: self.node.clone(),
                asked: asked.common_name.clone(),
            });
        }
        if asked.organizations != ["system:nodes"] {
            return Err(Unfit::Group);
        }
        self.check_usages()?;
        if asked.other_names {
            return Err(Unfit::OtherNames);
        }
        let names = asked
            .names
            .iter()
            .cloned()
            .chain(asked.addresses.iter().map(IpAddr::to_string));
        let strange = names.clone().find(|name| *name != self.node && !own_names.contains(name));
        match strange {
            Some(name) => Err(Unfit::NotItsOwn(name)),
            None if names.count() == 0 => Err(Unfit::NoNames),
            None => Ok(()),
        }
    }

    fn check_usages(&self) -> Result<(), Unfit> {
        let allowed = ["digital signature", "key encipherment", "server auth"];
        if let Some(usage) = self.usages.iter().find(|usage| !allowed.contains(&usage.as_str())) {
            return Err(Unfit::Usage(usage.clone()));
        }
        let missing = ["digital signature", "server auth"]
            .into_iter()
            .find(|usage| !self.usages.contains(*usage));
        missing.map_or(Ok(()), |usage| Err(Unfit::Usage(format!("anything but {usage}"))))
    }
}

impl Cluster {
    /// Requests of kubelets for serving certificates without a decision.
    pub async fn pending_kubelet_csrs(&self) -> Result<Vec<KubeletCsr>, Error> {
        let params = ListParams::default().fields(&format!("spec.signerName={SIGNER}"));
        let list = self.within("certificate requests", self.csr_api().list(&params)).await?;
        let mut pending: Vec<_> = list.items.into_iter().filter_map(pending).collect();
        pending.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(pending)
    }

    /// Approves what is asked for by a node that has exactly these names, and nothing else. `nodes` are ours, by name, with their
    /// addresses and hostname. Gives back what was not approved, and why.
    pub async fn approve_kubelet_csrs(&self, ours: &[crate::Node]) -> Result<Vec<(KubeletCsr, Unfit)>, Error> {
        let mut left = Vec::new();
        for csr in self.pending_kubelet_csrs().await? {
            let fit = match ours.iter().find(|node| node.name == csr.node) {
                None => Err(Unfit::Foreign(csr.node.clone())),
                Some(node) => csr.check(&node.addresses.iter().cloned().collect()),
            };
            match fit {
                Ok(()) => self.approve(&csr.name).await?,
                Err(unfit) => left.push((csr, unfit)),
            }
        }
        Ok(left)
    }

    async fn approve(&self, name: &str) -> Result<(), Error> {
        let message = "asked for by a node of this cluster, for its own addresses";
        let condition = json!({ "type": "Approved", "status": "True", "reason": "MainstayApproved", "message": message });
        let patch = Patch::Merge(json!({ "status": { "conditions": [condition] } }));
        self.within(
            "approve",
            self.csr_api().patch_approval(name, &PatchParams::default(), &patch),
        )
        .await
        .map(drop)
    }

    fn csr_api(&self) -> Api<CertificateSigningRequest> {
        Api::all(self.client.clone())
    }
}

/// `None` for what is decided, for another signer, and for what cannot be read: the last is for people to look at.
fn pending(csr: CertificateSigningRequest) -> Option<KubeletCsr> {
    let decided = csr
        .status
        .is_some_and(|status| status.conditions.is_some_and(|conditions| !conditions.is_empty()));
    if decided || csr.spec.signer_name != SIGNER {
        return None;
    }
    let node = csr.spec.username?.strip_prefix("system:node:")?.to_owned();
    let usages = csr.spec.usages.unwrap_or_default().into_iter().collect();
    Some(KubeletCsr {
        name: csr.metadata.name?,
        node,
        usages,
        asked: read(&csr.spec.request.0)?,
    })
}

fn read(request: &[u8]) -> Option<RequestedNames> {
    let block = pem::parse(request).ok()?;
    let (_, request) = X509CertificationRequest::from_der(block.contents()).ok()?;
    let subject = &request.certification_request_info.subject;
    let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| attribute.as_str().ok().map(str::to_owned);
    let mut asked = RequestedNames {
        common_name: subject.iter_common_name().next().and_then(text)?,
        organizations: subject.iter_organization().filter_map(text).collect(),
        ..RequestedNames::default()
    };
    for extension in request.requested_extensions().into_iter().flatten() {
        let ParsedExtension::SubjectAlternativeName(names) = extension else {
            continue;
        };
        for name in &names.general_names {
            match name {
                GeneralName::DNSName(name) => asked.names.extend([(*name).to_owned()]),
                GeneralName::IPAddress(bytes) => asked.addresses.extend([address(bytes)?]),
                _ => asked.other_names = true,
            }
        }
    }
    Some(asked)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}
