//! Pauses of random length, so that requests that failed together are not repeated together.

use std::sync::Mutex;
use std::time::Duration;

use mainstay_net::Env;
use rand::RngExt;

pub struct Jitter(Mutex<rand_chacha::ChaCha20Rng>);

impl Jitter {
    pub fn new(env: &Env) -> Self {
        Self(Mutex::new(env.entropy.fork("engine jitter").rng()))
    }

    /// A pause of about this length.
    pub fn pause(&self, pause: Duration) -> Duration {
        let share: f64 = self.0.lock().expect("nothing panics while it draws").random_range(0.75..1.25);
        pause.mul_f64(share)
    }
}
