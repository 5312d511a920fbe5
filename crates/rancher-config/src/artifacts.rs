//! Release artifacts: file names, where they are downloaded, which of them a machine needs.

use url::Url;

use crate::cni::Cni;
use crate::distro::Distro;
use crate::version::ReleaseVersion;

/// A file of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// The name in the release and in its checksum file.
    pub file: String,
    pub url: Url,
}

/// Where the files of a release come from: GitHub, or a mirror with the same layout (`<base>/<tag>/<file>`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactSource {
    base: Url,
}

/// Why a mirror address is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MirrorError {
    #[error("the mirror {0} is neither http nor https")]
    Scheme(Url),
    /// The address is written into the guest's input file and into logs.
    #[error("the mirror address carries a user or a password")]
    Credentials,
    #[error("the mirror address carries a query or a fragment")]
    Query,
}

impl ArtifactSource {
    pub fn github(distro: Distro) -> Self {
        let base = match distro {
            Distro::Rke2 => "https://github.com/rancher/rke2/releases/download/",
            Distro::K3s => "https://github.com/k3s-io/k3s/releases/download/",
        };
        Self {
            base: Url::parse(base).expect("a constant address"),
        }
    }

    pub fn mirror(base: &Url) -> Result<Self, MirrorError> {
        let mut base = base.clone();
        if !matches!(base.scheme(), "http" | "https") {
            return Err(MirrorError::Scheme(base));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(MirrorError::Credentials);
        }
        if base.query().is_some() || base.fragment().is_some() {
            return Err(MirrorError::Query);
        }
        // Without the slash, the last part of the mirror's path would be replaced instead of continued.
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        Ok(Self { base })
    }

    fn artifact(&self, version: ReleaseVersion, file: impl Into<String>) -> Artifact {
        let file = file.into();
        let url = self.base.join(&format!("{}/{file}", version.url_tag()));
        Artifact {
            url: url.expect("a tag and a file name are a relative path"),
            file,
        }
    }

    /// The file that lists the SHA-256 of every other file of the release.
    pub fn checksums(&self, version: ReleaseVersion) -> Artifact {
        self.artifact(version, "sha256sum-amd64.txt")
    }

    /// What is installed: a tarball for `/usr/local` on RKE2, the executable itself on k3s.
    pub fn program(&self, version: ReleaseVersion) -> Artifact {
        let file = match version.distro() {
            Distro::Rke2 => "rke2.linux-amd64.tar.gz",
            Distro::K3s => "k3s",
        };
        self.artifact(version, file)
    }

    /// Image archives that let a machine start without any registry.
    pub fn images(&self, version: ReleaseVersion, cni: Cni) -> Vec<Artifact> {
        let files: Vec<String> = match version.distro() {
            Distro::K3s => vec!["k3s-airgap-images-amd64.tar.zst".into()],
            Distro::Rke2 => ["core"]
                .into_iter()
                .chain(cni.rke2_image_archive())
                .map(|part| format!("rke2-images-{part}.linux-amd64.tar.zst"))
                .collect(),
        };
        files.into_iter().map(|file| self.artifact(version, file)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> ReleaseVersion {
        let distro = if text.contains("rke2") { Distro::Rke2 } else { Distro::K3s };
        ReleaseVersion::parse(distro, text).expect(text)
    }

    #[test]
    fn github_addresses_escape_the_plus() {
        let rke2 = version("v1.36.3+rke2r1");
        let source = ArtifactSource::github(Distro::Rke2);
        assert_eq!(
            source.program(rke2).url.as_str(),
            "https://github.com/rancher/rke2/releases/download/v1.36.3%2Brke2r1/rke2.linux-amd64.tar.gz"
        );
        assert_eq!(
            source.checksums(rke2).url.as_str(),
            "https://github.com/rancher/rke2/releases/download/v1.36.3%2Brke2r1/sha256sum-amd64.txt"
        );
        assert_eq!(
            ArtifactSource::github(Distro::K3s)
                .program(version("v1.36.3+k3s1"))
                .url
                .as_str(),
            "https://github.com/k3s-io/k3s/releases/download/v1.36.3%2Bk3s1/k3s"
        );
    }

    #[test]
    fn a_guest_without_registry_gets_core_and_cni_images() {
        let files = |text: &str, cni| {
            let version = version(text);
            let images = ArtifactSource::github(version.distro()).images(version, cni);
            images.into_iter().map(|artifact| artifact.file).collect::<Vec<_>>()
        };
        assert_eq!(
            files("v1.36.3+rke2r1", Cni::Canal),
            [
                "rke2-images-core.linux-amd64.tar.zst",
                "rke2-images-canal.linux-amd64.tar.zst"
            ]
        );
        assert_eq!(files("v1.36.3+rke2r1", Cni::None), ["rke2-images-core.linux-amd64.tar.zst"]);
        assert_eq!(files("v1.36.3+k3s1", Cni::Flannel), ["k3s-airgap-images-amd64.tar.zst"]);
    }

    #[test]
    fn a_mirror_keeps_its_path_and_must_not_carry_a_password() {
        let parse = |text| ArtifactSource::mirror(&Url::parse(text).expect(text));
        let source = parse("https://mirror.lan/rke2").expect("a mirror");
        assert_eq!(
            source.program(version("v1.36.3+rke2r1")).url.as_str(),
            "https://mirror.lan/rke2/v1.36.3%2Brke2r1/rke2.linux-amd64.tar.gz"
        );
        assert_eq!(parse("https://me:pw@mirror.lan/"), Err(MirrorError::Credentials));
        assert!(matches!(parse("ftp://mirror.lan/"), Err(MirrorError::Scheme(_))));
        assert_eq!(parse("https://mirror.lan/?token=x"), Err(MirrorError::Query));
    }
}
