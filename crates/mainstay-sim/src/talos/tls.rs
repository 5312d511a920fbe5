//! TLS of the machine API: a self-signed identity in maintenance, mutual authentication afterwards.

use std::net::IpAddr;
use std::sync::Arc;

use mainstay_net::{Entropy, Wall, crypto_provider, server_config};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme};

use crate::pki::{self, Authority, KeyUses, Pair, PkiError, Request};

/// A self-signed certificate of this boot.
pub(crate) fn maintenance(
    entropy: &Entropy,
    wall: Wall,
    hostname: &str,
    addresses: &[IpAddr],
) -> Result<Arc<ServerConfig>, PkiError> {
    let authority = Authority::self_signed(&entropy.fork("maintenance ca"), &wall)?;
    let mut request = Request::server("maintenance-service.talos.dev", &wall);
    request.names = dns_names(&[hostname.to_owned()]);
    request.addresses = addresses
        .iter()
        .copied()
        .chain([IpAddr::from([127, 0, 0, 1]), "::1".parse().expect("an address")])
        .collect();
    let pair = authority.issue(&request, &entropy.fork("maintenance"))?;
    finish(
        server_config(wall)
            .with_no_client_auth()
            .with_single_cert(vec![pair.certificate.clone()], pair.key_der()),
        Alpn::Grpc,
    )
}

pub(crate) enum Alpn {
    Grpc,
    Http,
}

fn finish(config: Result<ServerConfig, rustls::Error>, alpn: Alpn) -> Result<Arc<ServerConfig>, PkiError> {
    let mut config = config.map_err(|_| PkiError::Certificate)?;
    config.alpn_protocols = match alpn {
        Alpn::Grpc => vec![b"h2".to_vec()],
        Alpn::Http => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
    };
    Ok(Arc::new(config))
}

/// Names that may stand in a certificate.
pub(crate) fn dns_names(names: &[String]) -> Vec<String> {
    names
        .iter()
        .filter(|name| !name.is_empty() && name.parse::<IpAddr>().is_err())
        .cloned()
        .collect()
}

/// Serves with `pair`, and wants a certificate of one of `authorities` from every client.
pub(crate) fn mutual(pair: &Pair, authorities: &[String], wall: Wall) -> Result<Arc<ServerConfig>, PkiError> {
    let verifier = ExactlyClient {
        inner: verifier(authorities, wall, false)?,
        wall,
    };
    let config = server_config(wall).with_client_cert_verifier(Arc::new(verifier));
    finish(
        config.with_single_cert(vec![pair.certificate.clone()], pair.key_der()),
        Alpn::Grpc,
    )
}

/// Serves with `pair`; a client may show a certificate of `authority`, or none.
pub(crate) fn optional(pair: &Pair, authority: &str, wall: Wall) -> Result<Arc<ServerConfig>, PkiError> {
    let config = server_config(wall).with_client_cert_verifier(verifier(&[authority.to_owned()], wall, true)?);
    finish(
        config.with_single_cert(vec![pair.certificate.clone()], pair.key_der()),
        Alpn::Http,
    )
}

fn verifier(authorities: &[String], _wall: Wall, optional: bool) -> Result<Arc<dyn ClientCertVerifier>, PkiError> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        let certificate = pem::parse(authority).map_err(|_| PkiError::Certificate)?.into_contents();
        roots
            .add(CertificateDer::from(certificate))
            .map_err(|_| PkiError::Certificate)?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), crypto_provider());
    let builder = if optional { builder.allow_unauthenticated() } else { builder };
    builder.build().map_err(|_| PkiError::Certificate)
}

/// Since 1.12 a client certificate must be for client authentication and for nothing else.
#[derive(Debug)]
struct ExactlyClient {
    inner: Arc<dyn ClientCertVerifier>,
    wall: Wall,
}

impl ClientCertVerifier for ExactlyClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let wall = rustls::time_provider::TimeProvider::current_time(&self.wall).unwrap_or(now);
        let verified = self.inner.verify_client_cert(end_entity, intermediates, wall);
        if pki::key_uses(end_entity) != KeyUses::OnlyClient
            && !matches!(
                verified,
                Err(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer))
            )
        {
            // The alert for this is `bad_certificate`.
            return Err(rustls::Error::InvalidCertificate(CertificateError::BadEncoding));
        }
        verified
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
