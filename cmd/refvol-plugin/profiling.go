package main

import (
	"net/http"
	"net/http/pprof"
)

// profiles serves the profiles of net/http/pprof, but not the command line. They tell where time
// and memory go, and hold no value of an object.
func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	return mux
}

// validateProfilingAddress refuses an address that is not the plugin's own pod's loopback.
func validateProfilingAddress(address string) error {
	return validateLoopback("profiling-address", address, "127.0.0.1:6060", "profiles are not for the network")
}
