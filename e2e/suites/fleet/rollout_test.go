package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/volume"
)

// holders are twelve volumes on two nodes that show the Secret, and hold what its annotation holds.
type holders struct {
	w *world
	// files are where the volumes show the password.
	files []string
}

func newHolders(t *testing.T) *holders {
	t.Helper()
	h := &holders{w: newWorld(t)}
	for _, name := range []string{"hold-a", "hold-b"} {
		n := h.w.node(name)
		for i := range 6 {
			h.files = append(h.files, filepath.Join(n.Target(n.publish(fmt.Sprint(name, "-", i))), "password"))
		}
	}
	return h
}

// with returns how many volumes show a password that begins with a text.
func (h *holders) with(text string) (n int) {
	h.w.t.Helper()
	for _, file := range h.files {
		password, err := os.ReadFile(file)
		if err != nil {
			h.w.t.Fatal(err)
		}
		if strings.HasPrefix(string(password), text) {
			n++
		}
	}
	return n
}

// set writes a password, and keeps or sets the annotation.
func (h *holders) set(password, share string) {
	h.w.t.Helper()
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{volume.RolloutAnnotation: share}}, "stringData": map[string]string{"password": password},
	})
	if err != nil {
		h.w.t.Fatal(err)
	}
	if _, err := shared.Client().CoreV1().Secrets(h.w.namespace).Patch(h.w.t.Context(), "db", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		h.w.t.Fatal(err)
	}
}

// secret returns the Secret's annotations, and who manages them.
func (h *holders) secret() (annotations map[string]string, managers []string) {
	h.w.t.Helper()
	secret, err := shared.Client().CoreV1().Secrets(h.w.namespace).Get(h.w.t.Context(), "db", metav1.GetOptions{})
	if err != nil {
		h.w.t.Fatal(err)
	}
	for _, m := range secret.ManagedFields {
		managers = append(managers, m.Manager)
	}
	return secret.Annotations, managers
}

// rollout runs the command.
func (h *holders) rollout(args ...string) result {
	h.w.t.Helper()
	r := h.w.run(append([]string{"rollout", "secret/db", "-n", h.w.namespace}, args...)...)
	h.w.t.Logf("%s%s", r.stdout, r.stderr)
	return r
}

// mayRoll gives the caller the rights that the command needs beside get.
func (h *holders) mayRoll() {
	h.w.t.Helper()
	roles := shared.Client().RbacV1().Roles(h.w.namespace)
	role, err := roles.Get(h.w.t.Context(), "read", metav1.GetOptions{})
	if err != nil {
		h.w.t.Fatal(err)
	}
	role.Rules[0].Resources, role.Rules[0].Verbs = []string{"configmaps", "secrets"}, []string{"get", "list", "patch"}
	if _, err := roles.Update(h.w.t.Context(), role, metav1.UpdateOptions{}); err != nil {
		h.w.t.Fatal(err)
	}
	harness.Eventually(h.w.t, time.Minute, func() error {
		if r := h.rollout("--to=0%"); r.status != 0 {
			return errors.New(r.stderr)
		}
		return nil
	})
}

// TestRolloutPauses: a paused object is not rolled out, whoever tries, until it is resumed. An abort takes a canary back, and pauses a held
// version.
func TestRolloutPauses(t *testing.T) {
	h := newHolders(t)
	if r := h.rollout("--to=0%"); r.status != 2 || !strings.Contains(r.stderr, `cannot patch resource "secrets"`) {
		t.Errorf("without the right: %+v", r)
	}
	h.mayRoll()
	h.set("good "+leak.Value, "0%")
	sub := func(name, says string) {
		t.Helper()
		if r := h.w.run("rollout", name, "secret/db", "-n", h.w.namespace); r.status != 0 || !strings.Contains(r.stdout, says) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	isPaused := func() {
		t.Helper()
		if r := h.rollout("--steps=100%", "--every=1s"); r.status != 1 || !strings.Contains(r.stderr, "paused by its annotation refvol.dev/rollout-paused") || h.with("good") != 0 {
			t.Errorf("%+v, in %d pods", r, h.with("good"))
		}
	}
	sub("pause", "paused")
	isPaused()
	if r := h.w.run("rollout", "status", "-n", h.w.namespace); r.status != 0 || !strings.Contains(strings.Join(strings.Fields(r.stdout), " "), "secret/db held version 0% yes 0 12 0 -") {
		t.Errorf("%+v", r)
	}
	sub("resume", "no longer paused")
	sub("abort", "paused: to take the change back, write the old values")
	sub("resume", "no longer paused")
	if r := h.rollout("--steps=100%", "--every=1s"); r.status != 0 || h.with("good") != 12 {
		t.Errorf("resumed: %+v, in %d pods", r, h.with("good"))
	}
	canary := fmt.Sprintf(`{"metadata":{"annotations":{%q:"50%%"}}}`, volume.CanaryAnnotation)
	if _, err := shared.Client().CoreV1().Secrets(h.w.namespace).Patch(t.Context(), "db", types.MergePatchType, []byte(canary), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	sub("abort", "taken back: no pod shows the canary")
	if annotations, managers := h.secret(); annotations[volume.CanaryAnnotation] != "0%" || !slices.Contains(managers, "refvol-rollout") {
		t.Errorf("after the abort: %v of %q", annotations, managers)
	}
}

// TestRolloutBesideGitOps: a tool that applies the object again and again doesn't disturb a rollout. Its Git does not have the annotation.
func TestRolloutBesideGitOps(t *testing.T) {
	h := newHolders(t)
	h.mayRoll()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	secret := corev1apply.Secret("db", h.w.namespace).WithStringData(map[string]string{"password": "after " + leak.Value})
	apply := func() error {
		opts := metav1.ApplyOptions{FieldManager: "kustomize-controller", Force: true}
		_, err := shared.Client().CoreV1().Secrets(h.w.namespace).Apply(ctx, secret, opts)
		return err
	}
	if err := apply(); err != nil {
		t.Fatal(err)
	}
	var tool sync.WaitGroup
	tool.Go(func() {
		for tick := time.Tick(300 * time.Millisecond); ctx.Err() == nil; {
			if err := apply(); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			select {
			case <-tick:
			case <-ctx.Done():
			}
		}
	})
	r := h.rollout("--steps=50%,100%", "--every=2s")
	stop()
	tool.Wait()
	if r.status != 0 || h.with("after") != 12 {
		t.Errorf("%+v, in %d pods", r, h.with("after"))
	}
}
