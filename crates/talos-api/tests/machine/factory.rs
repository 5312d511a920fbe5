//! A factory in memory that answers as the public one does.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use mainstay_net::{Binder, ServeOptions, Trust, serve};
use semver::Version;
use talos_api::factory::{Factory, FactoryError, Image};
use tokio::time::{Instant, sleep};

use crate::world::{World, run};

const QEMU: &str =
    "customization:\n    systemExtensions:\n        officialExtensions:\n            - siderolabs/qemu-guest-agent\n";
const QEMU_ID: &str = "ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515";
const PATIENCE: Duration = Duration::from_secs(900);

#[derive(Clone, Default)]
struct Order {
    build: Duration,
    /// How many requests for an image fail first, with this.
    failing: Arc<AtomicUsize>,
    status: StatusCode,
    text: &'static str,
    redirect: bool,
    heard: Arc<Mutex<Vec<String>>>,
}

async fn image(State(order): State<Order>, Path((id, version, file)): Path<(String, String, String)>) -> Response {
    order.heard.lock().unwrap().push(format!("{id}/{version}/{file}"));
    if order.failing.load(Ordering::Relaxed) > 0 {
        order.failing.fetch_sub(1, Ordering::Relaxed);
        return (order.status, order.text).into_response();
    }
    sleep(order.build).await;
    if order.redirect {
        return (StatusCode::FOUND, [(header::LOCATION, "/cdn/blob")]).into_response();
    }
    ([(header::CONTENT_LENGTH, "123456789")], ()).into_response()
}

fn app(order: Order) -> Router {
    let versions = get(|| async { axum::Json(["v1.12.11", "v1.13.9", "v1.13.0-beta.1"]) });
    let extensions = get(|Path(version): Path<String>| async move {
        if version != "v1.13.9" {
            return (StatusCode::INTERNAL_SERVER_ERROR, "internal server error").into_response();
        }
        axum::Json(serde_json::json!([{"name": "siderolabs/qemu-guest-agent", "ref": "x", "digest": "y", "author": "z"}]))
            .into_response()
    });
    let schematics = post(|body: String| async move {
        match body.as_str() {
            QEMU => (
                StatusCode::CREATED,
                axum::Json(serde_json::json!({"id": QEMU_ID, "schematic": QEMU})),
            )
                .into_response(),
            _ => (StatusCode::BAD_REQUEST, "yaml: unmarshal errors: field nope not found").into_response(),
        }
    });
    Router::new()
        .route("/versions", versions)
        .route("/version/{version}/extensions/official", extensions)
        .route("/schematics", schematics)
        .route("/image/{id}/{version}/{file}", any(image))
        .route("/cdn/blob", any(|| async { ([(header::CONTENT_LENGTH, "42")], ()) }))
        .with_state(order)
}

async fn factory(world: &World, order: Order) -> Factory {
    let at: SocketAddr = "10.0.0.80:80".parse().unwrap();
    let listener = world.net.bind(at).await.unwrap();
    tokio::spawn(serve(listener, app(order), ServeOptions::plain()));
    Factory::new(&world.env, &"http://10.0.0.80".parse().unwrap(), &Trust::Plain).unwrap()
}

/// Refuses every image.
fn refusing(status: StatusCode, text: &'static str) -> Order {
    Order {
        failing: Arc::new(AtomicUsize::new(usize::MAX)),
        status,
        text,
        ..Default::default()
    }
}

fn wanted(version: &str) -> Image {
    Image {
        schematic: QEMU_ID.into(),
        version: Version::parse(version).unwrap(),
        file: "nocloud-amd64.qcow2".into(),
    }
}

async fn ask(factory: &Factory, version: &str) -> Result<talos_api::factory::Asset, FactoryError> {
    factory.asset(&wanted(version), PATIENCE, &mut |_| {}).await
}

#[test]
fn a_schematic_is_registered_and_its_id_compared() {
    run(|world| async move {
        let factory = factory(&world, Order::default()).await;
        factory.register(QEMU, QEMU_ID).await.unwrap();
        let error = factory.register(QEMU, "other").await.unwrap_err();
        assert!(matches!(error, FactoryError::WrongId { .. }), "{error:?}");
        let error = factory.register("nope: 1", QEMU_ID).await.unwrap_err();
        assert!(
            matches!(&error, FactoryError::BadSchematic { text, .. } if text.contains("field nope")),
            "{error:?}"
        );
        assert!(!error.is_transient());
    });
}

#[test]
fn versions_come_in_order() {
    run(|world| async move {
        let versions = factory(&world, Order::default()).await.versions().await.unwrap();
        assert_eq!(
            versions.iter().map(Version::to_string).collect::<Vec<_>>(),
            ["1.12.11", "1.13.0-beta.1", "1.13.9"]
        );
    });
}

#[test]
fn an_unknown_extension_and_an_unknown_version_are_told_apart() {
    run(|world| async move {
        let factory = factory(&world, Order::default()).await;
        let (known, unknown) = (Version::new(1, 13, 9), Version::new(1, 99, 0));
        let names = |name: &str| vec![name.to_owned()];
        factory
            .check_extensions(&known, &names("siderolabs/qemu-guest-agent"))
            .await
            .unwrap();
        let error = factory.check_extensions(&known, &names("siderolabs/nope")).await.unwrap_err();
        assert!(matches!(error, FactoryError::UnknownExtension { .. }), "{error:?}");
        let error = factory.check_extensions(&unknown, &[]).await.unwrap_err();
        assert!(matches!(error, FactoryError::UnknownVersion { .. }), "{error:?}");
        // 1.12.11 is listed, and its extensions still fail: the factory is out of order.
        let error = factory.check_extensions(&Version::new(1, 12, 11), &[]).await.unwrap_err();
        assert!(
            matches!(error, FactoryError::Outage { .. }) && error.is_transient(),
            "{error:?}"
        );
    });
}

#[test]
fn an_image_is_waited_for_while_it_is_built() {
    run(|world| async move {
        let order = Order {
            build: Duration::from_secs(92),
            ..Default::default()
        };
        let factory = factory(&world, order.clone()).await;
        let (start, mut reports) = (Instant::now(), Vec::new());
        let asset = factory
            .asset(&wanted("1.13.9"), PATIENCE, &mut |waited| reports.push(waited.as_secs()))
            .await
            .unwrap();
        assert_eq!(asset.size, 123_456_789);
        assert_eq!(
            asset.url.as_str(),
            format!("http://10.0.0.80/image/{QEMU_ID}/v1.13.9/nocloud-amd64.qcow2")
        );
        assert_eq!(start.elapsed().as_secs(), 92);
        assert_eq!((reports[0], reports.len()), (5, 18));
        assert_eq!(order.heard.lock().unwrap().len(), 1);
    });
}

#[test]
fn a_factory_that_sends_on_is_followed_and_keeps_its_own_address() {
    run(|world| async move {
        let factory = factory(
            &world,
            Order {
                redirect: true,
                ..Default::default()
            },
        )
        .await;
        let asset = ask(&factory, "1.13.9").await.unwrap();
        assert_eq!((asset.size, asset.url.path().starts_with("/image/")), (42, true));
    });
}

#[test]
fn an_outage_is_waited_out() {
    run(|world| async move {
        let order = Order {
            failing: Arc::new(AtomicUsize::new(3)),
            status: StatusCode::BAD_GATEWAY,
            ..Default::default()
        };
        let factory = factory(&world, order).await;
        let start = Instant::now();
        assert_eq!(ask(&factory, "1.13.9").await.unwrap().size, 123_456_789);
        assert_eq!(start.elapsed().as_secs(), 15);
    });
}

#[test]
fn patience_ends() {
    run(|world| async move {
        let factory = factory(&world, refusing(StatusCode::BAD_GATEWAY, "")).await;
        let error = factory
            .asset(&wanted("1.13.9"), Duration::from_secs(60), &mut |_| {})
            .await
            .unwrap_err();
        assert!(
            matches!(&error, FactoryError::NotBuilt { last: Some(last), .. } if last.is_transient()),
            "{error:?}"
        );

        let unreachable = Factory::new(&world.env, &"http://10.0.0.81/".parse().unwrap(), &Trust::Plain).unwrap();
        let error = unreachable.versions().await.unwrap_err();
        assert!(
            matches!(error, FactoryError::Unreachable { .. }) && error.is_transient(),
            "{error:?}"
        );
    });
}

#[test]
fn an_image_that_is_not_there_is_not_waited_for() {
    run(|world| async move {
        let start = Instant::now();
        let factory_of = factory(&world, refusing(StatusCode::NOT_FOUND, "")).await;
        let error = ask(&factory_of, "1.13.9").await.unwrap_err();
        assert!(matches!(error, FactoryError::UnknownSchematic { .. }), "{error:?}");
        let error = ask(&factory_of, "1.99.0").await.unwrap_err();
        assert!(matches!(error, FactoryError::UnknownVersion { .. }), "{error:?}");
        assert_eq!(start.elapsed().as_secs(), 0);
    });
    run(|world| async move {
        let text = "official extension \"siderolabs/x\" is not available for Talos version v1.13.9";
        let error = ask(&factory(&world, refusing(StatusCode::BAD_REQUEST, text)).await, "1.13.9")
            .await
            .unwrap_err();
        assert!(
            matches!(&error, FactoryError::UnknownExtension { extension, .. } if extension == "siderolabs/x"),
            "{error:?}"
        );
    });
    run(|world| async move {
        let error = ask(
            &factory(&world, refusing(StatusCode::PAYMENT_REQUIRED, "enterprise")).await,
            "1.13.9",
        )
        .await
        .unwrap_err();
        assert!(matches!(error, FactoryError::Subscription { .. }), "{error:?}");
    });
}

#[test]
fn a_factory_below_a_path_of_its_own_is_asked_there() {
    run(|world| async move {
        let at: SocketAddr = "10.0.0.80:80".parse().unwrap();
        let listener = world.net.bind(at).await.unwrap();
        let nested = Router::new().nest("/factory", app(Order::default()));
        tokio::spawn(serve(listener, nested, ServeOptions::plain()));
        let factory = Factory::new(&world.env, &"http://10.0.0.80/factory".parse().unwrap(), &Trust::Plain).unwrap();
        assert_eq!(factory.versions().await.unwrap().len(), 3);
    });
}
