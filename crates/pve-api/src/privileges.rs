//! Privileges by PVE version, and which call needs which.
