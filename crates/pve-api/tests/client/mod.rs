//! The client against a responder of a few lines: what is sent, how often, and what becomes of each kind of answer.

mod canary;
mod lateness;
mod login;
mod pve;
mod send;
mod tasks;
mod upload;
