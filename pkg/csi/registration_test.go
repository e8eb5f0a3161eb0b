package csi

import (
	"os"
	"slices"
	"testing"

	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func TestTheKubeletIsToldOfTheDriver(t *testing.T) {
	for _, test := range []struct{ name, kubeletPath string }{
		{"as in the container", ""},
		{"as the kubelet sees it", "/var/lib/kubelet/plugins/x/csi.sock"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := serve(t, func(o *Options) { o.KubeletSocketPath = test.kubeletPath })
			info, err := s.registrar.GetInfo(t.Context(), &registration.InfoRequest{})
			if err != nil {
				t.Fatal(err)
			}
			want := test.kubeletPath
			if want == "" {
				want = s.path
			}
			if info.GetType() != registration.CSIPlugin || info.GetName() != testDriver || info.GetEndpoint() != want ||
				!slices.Equal(info.GetSupportedVersions(), []string{"1.0.0"}) {
				t.Errorf("got %v", info)
			}
		})
	}
}

func TestReadyFollowsTheKubelet(t *testing.T) {
	told := make(chan bool, 10)
	s := serve(t, func(o *Options) { o.Registered = func(registered bool) { told <- registered } })
	if s.Ready() {
		t.Error("ready before the kubelet confirmed")
	}
	if _, err := s.registrar.GetInfo(t.Context(), &registration.InfoRequest{}); err != nil || s.Ready() || len(told) > 0 {
		t.Errorf("ready as soon as the kubelet asked, %v", err)
	}
	for _, registered := range []bool{true, false, true} {
		_, err := s.registrar.NotifyRegistrationStatus(t.Context(),
			&registration.RegistrationStatus{PluginRegistered: registered, Error: "the node is not known"})
		if err != nil {
			t.Fatal(err)
		}
		if s.Ready() != registered {
			t.Errorf("ready is %t after the kubelet said %t", s.Ready(), registered)
		}
		if len(told) != 1 || <-told != registered {
			t.Errorf("Registered did not hear %t once", registered)
		}
	}
	if got := s.logs.with("Kubelet refused", testDriver, "the node is not known"); len(got) != 1 {
		t.Errorf("the refusal was logged %d times", len(got))
	}
	if got := s.logs.with("Kubelet registered", testDriver); len(got) != 2 {
		t.Errorf("the confirmation was logged %d times", len(got))
	}
}

func TestWithoutRegistration(t *testing.T) {
	s := serve(t, func(o *Options) { o.RegistrationDir = "" })
	if !s.Ready() {
		t.Error("not ready")
	}
	if _, err := os.Lstat(s.registrationPath); err == nil {
		t.Error("there is a registration socket")
	}
	if got := s.logs.with("Serving"); len(got) != 1 {
		t.Errorf("serves %q", got)
	}
}
