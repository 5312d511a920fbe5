//! Whether something is there, absent, or could not be looked at.

/// A fact about the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen<T> {
    Yes(T),
    /// Looked, and it is not there.
    No,
    /// Could not look, and why.
    Unknown(String),
}

impl<T> Seen<T> {
    pub fn yes(&self) -> Option<&T> {
        match self {
            Self::Yes(value) => Some(value),
            Self::No | Self::Unknown(_) => None,
        }
    }

    pub fn unknown(&self) -> Option<&str> {
        match self {
            Self::Unknown(why) => Some(why),
            Self::Yes(_) | Self::No => None,
        }
    }
}
