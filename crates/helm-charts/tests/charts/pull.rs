//! Pulling.

use helm_charts::pull::Pinned;
use helm_charts::{Mirrors, PullError, Sha256Digest};

use crate::world::{Page, Site, World, demo, login, registry, request, run};

const SOURCE: &str = "oci://registry.example/charts/demo";

#[test]
fn a_chart_is_pulled_anonymously_and_checked() {
    run(async |mut world: World| {
        let chart = demo("1.2.3");
        world
            .server("registry.example", registry("charts/demo", "1.2.3", &chart))
            .await;
        let client = world.client(Mirrors::default());
        let pulled = client
            .pull(&request(SOURCE, None, "1.2.3"), Pinned::default())
            .await
            .expect("a chart");
        assert_eq!(pulled.bytes, chart);
        assert_eq!(pulled.archive.version, "1.2.3");
        assert!(pulled.digest_was_published);
        let pinned = Pinned {
            manifest: pulled.manifest,
            archive: Some(pulled.archive.sha256),
        };
        client.pull(&request(SOURCE, None, "1.2.3"), pinned).await.expect("the same");
        let asked = world.seen("registry.example");
        let last_manifest = asked
            .iter()
            .rev()
            .find(|(path, _)| path.contains("/manifests/"))
            .expect("asked");
        assert!(last_manifest.0.contains("/manifests/sha256:"), "a pin is asked for by digest");
    });
}

#[test]
fn a_plus_in_the_version_is_an_underscore_in_the_tag() {
    run(async |mut world: World| {
        let chart = demo("1.2.3+up1");
        world
            .server("registry.example", registry("charts/demo", "1.2.3_up1", &chart))
            .await;
        let client = world.client(Mirrors::default());
        client
            .pull(&request(SOURCE, None, "1.2.3+up1"), Pinned::default())
            .await
            .expect("a chart");
    });
}

fn protected(chart: &[u8], realm: &str) -> Site {
    let mut site = registry("charts/demo", "1.2.3", chart);
    site.protected = Some("Bearer abc".into());
    site.challenge = Some(format!(
        r#"Bearer realm="{realm}",service="reg",scope="repository:charts/demo:pull""#
    ));
    site
}

const TOKEN_PAGE: &str = "/token?service=reg&scope=repository%3Acharts%2Fdemo%3Apull";

fn token_server() -> Site {
    let mut site = Site::default();
    site.pages
        .insert(TOKEN_PAGE.into(), Page::Bytes(br#"{"token": "abc"}"#.to_vec()));
    site
}

#[test]
fn the_token_flow_is_followed_anonymously_and_with_credentials() {
    run(async |mut world: World| {
        world
            .server("registry.example", protected(&demo("1.2.3"), "https://auth.example/token"))
            .await;
        world.server("auth.example", token_server()).await;
        let wanted = request(SOURCE, None, "1.2.3");
        let client = world.client(Mirrors::default());
        client.pull(&wanted, Pinned::default()).await.expect("a chart");
        assert!(
            world
                .seen("auth.example")
                .iter()
                .all(|(_, authorization)| authorization.is_none())
        );
        let client = world.client(login("registry.example"));
        client.pull(&wanted, Pinned::default()).await.expect("a chart");
        let last = world.seen("auth.example").pop().expect("asked");
        assert_eq!(last.1.as_deref(), Some("Basic dXNlcjpjYW5hcnk="));
        let registry = world.seen("registry.example");
        assert!(
            registry
                .iter()
                .all(|(_, authorization)| authorization.as_deref() != Some("Basic dXNlcjpjYW5hcnk="))
        );
    });
}

#[test]
fn a_token_server_without_tls_gets_nothing() {
    run(async |mut world: World| {
        world
            .server("registry.example", protected(&demo("1.2.3"), "http://auth.example/token"))
            .await;
        let client = world.client(login("registry.example"));
        let refused = client.pull(&request(SOURCE, None, "1.2.3"), Pinned::default()).await;
        assert!(matches!(refused, Err(PullError::InsecureRealm { .. })), "{refused:?}");
    });
}

#[test]
fn a_registry_that_wants_a_password_itself_gets_it() {
    run(async |mut world: World| {
        let mut site = registry("charts/demo", "1.2.3", &demo("1.2.3"));
        site.protected = Some("Basic dXNlcjpjYW5hcnk=".into());
        site.challenge = Some("Basic realm=\"x\"".into());
        world.server("registry.example", site).await;
        let wanted = request(SOURCE, None, "1.2.3");
        let anonymous = world.client(Mirrors::default()).pull(&wanted, Pinned::default()).await;
        assert!(matches!(anonymous, Err(PullError::Denied { .. })), "{anonymous:?}");
        let client = world.client(login("registry.example"));
        client.pull(&wanted, Pinned::default()).await.expect("a chart");
    });
}

#[test]
fn a_redirect_to_another_host_carries_no_authorization() {
    run(async |mut world: World| {
        let chart = demo("1.2.3");
        let blob = format!("/v2/charts/demo/blobs/{}", Sha256Digest::of(&chart));
        let mut site = protected(&chart, "https://auth.example/token");
        site.pages
            .insert(blob, Page::Redirect("https://store.example/blob?sig=x".into()));
        world.server("registry.example", site).await;
        world.server("auth.example", token_server()).await;
        let mut store = Site::default();
        store.pages.insert("/blob?sig=x".into(), Page::Bytes(chart));
        world.server("store.example", store).await;
        let client = world.client(Mirrors::default());
        client
            .pull(&request(SOURCE, None, "1.2.3"), Pinned::default())
            .await
            .expect("a chart");
        assert_eq!(world.seen("store.example"), [("/blob?sig=x".to_owned(), None)]);
    });
}

#[test]
fn redirects_without_tls_and_without_end_are_refused() {
    run(async |mut world: World| {
        let mut site = Site::default();
        let manifest = "/v2/charts/demo/manifests/1.2.3";
        site.pages
            .insert(manifest.into(), Page::Redirect("http://store.example/x".into()));
        site.pages.insert(
            "/v2/charts/demo/manifests/2.0.0".into(),
            Page::Redirect("/v2/charts/demo/manifests/2.0.0".into()),
        );
        world.server("registry.example", site).await;
        let client = world.client(Mirrors::default());
        let plain = client.pull(&request(SOURCE, None, "1.2.3"), Pinned::default()).await;
        assert!(matches!(plain, Err(PullError::InsecureRedirect { .. })), "{plain:?}");
        let endless = client.pull(&request(SOURCE, None, "2.0.0"), Pinned::default()).await;
        assert!(matches!(endless, Err(PullError::Redirects { .. })), "{endless:?}");
        assert!(world.seen("registry.example").len() < 12, "bounded");
    });
}

#[test]
fn wrong_bytes_are_refused_wherever_they_are() {
    run(async |mut world: World| {
        let chart = demo("1.2.3");
        let mut site = registry("charts/demo", "1.2.3", &chart);
        let blob = format!("/v2/charts/demo/blobs/{}", Sha256Digest::of(&chart));
        site.pages.insert(blob, Page::Bytes(demo("6.6.6")));
        world.server("registry.example", site).await;
        let client = world.client(Mirrors::default());
        let tampered = client.pull(&request(SOURCE, None, "1.2.3"), Pinned::default()).await;
        assert!(matches!(tampered, Err(PullError::Digest { .. })), "{tampered:?}");

        world.server("moved.example", registry("charts/demo", "1.2.3", &chart)).await;
        let wanted = request("oci://moved.example/charts/demo", None, "1.2.3");
        let pinned = Pinned {
            manifest: None,
            archive: Some(Sha256Digest::of(b"another")),
        };
        let moved = client.pull(&wanted, pinned).await;
        assert!(matches!(moved, Err(PullError::Digest { .. })), "{moved:?}");
    });
}

#[test]
fn a_tag_that_holds_another_version_is_refused() {
    run(async |mut world: World| {
        world
            .server("registry.example", registry("charts/demo", "1.2.3", &demo("1.2.2")))
            .await;
        let client = world.client(Mirrors::default());
        let refused = client.pull(&request(SOURCE, None, "1.2.3"), Pinned::default()).await;
        assert!(matches!(refused, Err(PullError::Archive(_))), "{refused:?}");
    });
}

fn repository(digest: Option<String>) -> Site {
    let digest = digest.map(|digest| format!("    digest: {digest}\n")).unwrap_or_default();
    let index = format!(
        "apiVersion: v1\nentries:\n  demo:\n  - version: 1.2.3\n{digest}    urls:\n    - archives/demo-1.2.3.tgz\n  - version: 2.0.0-rc.1\n    \
         urls: [x]\n  - version: 1.10.0\n    urls: [https://elsewhere.example/demo.tgz]\n"
    );
    let mut site = Site::default();
    site.pages
        .insert("/stable/index.yaml".into(), Page::Bytes(index.into_bytes()));
    site.pages
        .insert("/stable/archives/demo-1.2.3.tgz".into(), Page::Bytes(demo("1.2.3")));
    site
}

const REPOSITORY: &str = "https://charts.example/stable";

#[test]
fn a_repository_gives_relative_and_absolute_addresses_and_sorted_versions() {
    run(async |mut world: World| {
        world
            .server("charts.example", repository(Some(Sha256Digest::of(&demo("1.2.3")).hex())))
            .await;
        let mut elsewhere = Site::default();
        elsewhere.pages.insert("/demo.tgz".into(), Page::Bytes(demo("1.10.0")));
        world.server("elsewhere.example", elsewhere).await;
        let client = world.client(Mirrors::default());
        let relative = client
            .pull(&request(REPOSITORY, Some("demo"), "1.2.3"), Pinned::default())
            .await
            .expect("a chart");
        assert!(relative.digest_was_published && relative.manifest.is_none());
        let absolute = client
            .pull(&request(REPOSITORY, Some("demo"), "1.10.0"), Pinned::default())
            .await
            .expect("a chart");
        assert!(!absolute.digest_was_published, "the first pull pins it");
        let source = request(REPOSITORY, Some("demo"), "1.2.3").source;
        let versions = client.versions(&source).await.expect("versions");
        assert_eq!(
            versions.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["1.10.0", "1.2.3"]
        );
    });
}

#[test]
fn a_repository_with_a_wrong_digest_or_without_the_chart_is_refused() {
    run(async |mut world: World| {
        world.server("charts.example", repository(Some("0".repeat(64)))).await;
        let client = world.client(Mirrors::default());
        let wrong = client
            .pull(&request(REPOSITORY, Some("demo"), "1.2.3"), Pinned::default())
            .await;
        assert!(matches!(wrong, Err(PullError::Digest { .. })), "{wrong:?}");
        for (chart, version) in [("demo", "9.9.9"), ("other", "1.2.3")] {
            let missing = client
                .pull(&request(REPOSITORY, Some(chart), version), Pinned::default())
                .await;
            assert!(matches!(missing, Err(PullError::NotFound { .. })), "{missing:?}");
        }
    });
}

#[test]
fn a_mirror_is_asked_instead_and_the_next_one_if_it_is_down() {
    run(async |mut world: World| {
        world
            .server("mirror.example", {
                let mut site = Site::default();
                for (path, page) in registry("charts/demo", "1.2.3", &demo("1.2.3")).pages {
                    site.pages.insert(path.replace("/v2/", "/proxy/v2/"), page);
                }
                site
            })
            .await;
        let down = "https://down.example/".parse().expect("a URL");
        let mirror = "https://mirror.example/proxy".parse().expect("a URL");
        let mirrors = Mirrors {
            endpoints: [("registry.example".to_owned(), vec![down, mirror])].into(),
            ..Mirrors::default()
        };
        let client = world.client(mirrors);
        client
            .pull(&request(SOURCE, None, "1.2.3"), Pinned::default())
            .await
            .expect("a chart");
    });
}

#[test]
fn plain_http_works_on_loopback() {
    run(async |mut world: World| {
        world.loopback(registry("charts/demo", "1.2.3", &demo("1.2.3"))).await;
        let client = world.client(Mirrors::default());
        let wanted = request("oci://127.0.0.1:5000/charts/demo", None, "1.2.3");
        client.pull(&wanted, Pinned::default()).await.expect("a chart");
    });
}

#[test]
fn an_outage_is_transient_and_a_missing_chart_is_not() {
    run(async |mut world: World| {
        let mut site = Site::default();
        site.pages.insert("/v2/charts/demo/manifests/1.2.3".into(), Page::Status(503));
        world.server("registry.example", site).await;
        let client = world.client(Mirrors::default());
        let outage = client
            .pull(&request(SOURCE, None, "1.2.3"), Pinned::default())
            .await
            .expect_err("an outage");
        assert!(outage.is_transient(), "{outage}");
        let missing = client
            .pull(&request(SOURCE, None, "1.2.4"), Pinned::default())
            .await
            .expect_err("no chart");
        assert!(!missing.is_transient(), "{missing}");
        let unreachable = client
            .pull(&request("oci://nowhere.example/demo", None, "1.2.3"), Pinned::default())
            .await;
        assert!(unreachable.expect_err("no host").is_transient());
    });
}

#[test]
fn errors_and_debug_output_hold_no_password() {
    run(async |mut world: World| {
        world
            .server("registry.example", protected(&demo("1.2.3"), "https://auth.example/token"))
            .await;
        let mut auth = token_server();
        auth.pages.insert(TOKEN_PAGE.into(), Page::Status(403));
        world.server("auth.example", auth).await;
        let mirrors = login("registry.example");
        assert!(!format!("{mirrors:?}").contains("canary"));
        let refused = world
            .client(mirrors)
            .pull(&request(SOURCE, None, "1.2.3"), Pinned::default())
            .await;
        let problem = refused.expect_err("refused");
        assert!(!format!("{problem} {problem:?}").contains("canary"));
    });
}
