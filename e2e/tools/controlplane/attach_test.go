package controlplane

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func attaches(t *testing.T, c *ControlPlane) {
	t.Helper()
	a, err := Attach(c.Kubeconfig(), "")
	if err != nil {
		t.Fatal(err)
	}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "attached"}}
	if _, err := a.Client().CoreV1().ServiceAccounts("default").Create(t.Context(), sa, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := a.ServiceAccountToken(t.Context(), "default", "attached", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	// What it writes leads to the same server.
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := a.WriteKubeconfig(path, token); err != nil {
		t.Fatal(err)
	}
	again, err := Attach(path, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Client().Discovery().ServerVersion(); err != nil {
		t.Error(err)
	}
	if err := errors.Join(again.Stop(), a.Stop()); err != nil {
		t.Error(err)
	}
	if _, err := c.Client().CoreV1().ServiceAccounts("default").Get(t.Context(), "attached", metav1.GetOptions{}); err != nil {
		t.Errorf("after the end of the attached ones: %v", err)
	}
	if start, stop := a.StartAPIServer(t.Context()), a.StopAPIServer(); !errors.Is(start, errAttached) || !errors.Is(stop, errAttached) {
		t.Errorf("start and stop: %v and %v, want %v", start, stop, errAttached)
	}
}

func TestAttachToNothing(t *testing.T) {
	if _, err := Attach(filepath.Join(t.TempDir(), "none"), ""); err == nil {
		t.Error("no error")
	}
}
