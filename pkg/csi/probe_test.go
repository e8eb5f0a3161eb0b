package csi

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// TestProbeOfTheOwnSocket: it succeeds as long as the kubelet would get an answer. Its call is counted.
func TestProbeOfTheOwnSocket(t *testing.T) {
	s := serve(t, nil)
	before := len(s.observed.get())
	if err := s.Probe(t.Context()); err != nil {
		t.Error(err)
	}
	if got := s.observed.get(); len(got) != before+1 || got[before] != (observation{"Probe", codes.OK.String()}) {
		t.Errorf("calls: %v", got)
	}
	must(t, os.Remove(s.path))
	if err := s.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "probe "+s.path) {
		t.Errorf("without a socket: %v", err)
	}

	// A process that listens and never answers.
	listener, err := net.Listen("unix", s.path)
	must(t, err)
	defer listener.Close()
	ctx, cancel := context.WithCancel(t.Context())
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			t.Error(err)
		}
		cancel()
		accepted <- conn
	}()
	if err := s.Probe(ctx); err == nil {
		t.Error("no error without an answer")
	}
	if conn := <-accepted; conn != nil {
		conn.Close()
	}
}

// TestProbeOfTheRegistration: without its socket the kubelet no longer knows the driver. A plugin that does not register needs none.
func TestProbeOfTheRegistration(t *testing.T) {
	s := serve(t, nil)
	if _, err := s.registrar.GetInfo(t.Context(), &registration.InfoRequest{}); err != nil { // it serves there
		t.Fatal(err)
	}
	must(t, os.Remove(s.registrationPath))
	if err := s.Probe(t.Context()); err == nil || err.Error() != "probe the registration: lstat "+s.registrationPath+": no such file or directory" {
		t.Error(err)
	}
	if err := serve(t, func(o *Options) { o.RegistrationDir = "" }).Probe(t.Context()); err != nil {
		t.Error(err)
	}
}
