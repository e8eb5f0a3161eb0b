package fleet

import (
	"context"
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
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

// TestRollout rolls out a Secret that twelve volumes on two nodes show. A paused object is not rolled out, whoever tries, until it is resumed.
// An abort takes a canary back, and pauses a held version. A tool that applies the object again and again doesn't disturb a rollout: its Git
// does not have the annotation.
func TestRollout(t *testing.T) {
	w := newWorld(t)
	secrets := shared.Client().CoreV1().Secrets(w.namespace)
	var files []string
	for _, name := range []string{"hold-a", "hold-b"} {
		n := w.node(name)
		for i := range 6 {
			files = append(files, filepath.Join(n.Target(n.publish(fmt.Sprint(name, "-", i))), "password"))
		}
	}
	// showing returns how many volumes show a password that begins with a text.
	showing := func(text string) (n int) {
		t.Helper()
		for _, file := range files {
			password := must.Get(os.ReadFile(file))(t)
			if strings.HasPrefix(string(password), text) {
				n++
			}
		}
		return n
	}
	patch := func(format string, args ...any) {
		t.Helper()
		must.Get(secrets.Patch(t.Context(), "db", types.MergePatchType, fmt.Appendf(nil, format, args...), metav1.PatchOptions{}))(t)
	}
	rollout := func(args ...string) result {
		t.Helper()
		r := w.run(append([]string{"rollout", "secret/db", "-n", w.namespace}, args...)...)
		t.Logf("%s%s", r.stdout, r.stderr)
		return r
	}
	sub := func(name, says string) {
		t.Helper()
		if r := w.run("rollout", name, "secret/db", "-n", w.namespace); r.status != 0 || !strings.Contains(r.stdout, says) {
			t.Errorf("%s: %+v", name, r)
		}
	}

	if r := rollout("--to=0%"); r.status != 2 || !strings.Contains(r.stderr, `cannot patch resource "secrets"`) {
		t.Errorf("without the right: %+v", r)
	}
	roles := shared.Client().RbacV1().Roles(w.namespace)
	role := must.Get(roles.Get(t.Context(), "read", metav1.GetOptions{}))(t)
	role.Rules[0].Resources, role.Rules[0].Verbs = []string{"configmaps", "secrets"}, []string{"get", "list", "patch"}
	must.Get(roles.Update(t.Context(), role, metav1.UpdateOptions{}))(t)
	harness.Eventually(t, time.Minute, func() error {
		if r := rollout("--to=0%"); r.status != 0 {
			return errors.New(r.stderr)
		}
		return nil
	})

	patch(`{"metadata":{"annotations":{%q:"0%%"}},"stringData":{"password":"good %s"}}`, volume.RolloutAnnotation, leak.Value)
	sub("pause", "paused")
	if r := rollout("--steps=100%", "--every=1s"); r.status != 1 || !strings.Contains(r.stderr, "paused by its annotation refvol.dev/rollout-paused") || showing("good") != 0 {
		t.Errorf("%+v, in %d pods", r, showing("good"))
	}
	if r := w.run("rollout", "status", "-n", w.namespace); r.status != 0 || !strings.Contains(strings.Join(strings.Fields(r.stdout), " "), "secret/db held version 0% yes 0 12 0 -") {
		t.Errorf("%+v", r)
	}
	sub("resume", "no longer paused")
	sub("abort", "paused: to take the change back, write the old values")
	sub("resume", "no longer paused")
	if r := rollout("--steps=100%", "--every=1s"); r.status != 0 || showing("good") != 12 {
		t.Errorf("resumed: %+v, in %d pods", r, showing("good"))
	}

	if r := rollout("--to=0%"); r.status != 0 {
		t.Fatalf("%+v", r)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	apply := func() error {
		after := corev1apply.Secret("db", w.namespace).WithStringData(map[string]string{"password": "after " + leak.Value})
		_, err := secrets.Apply(ctx, after, metav1.ApplyOptions{FieldManager: "kustomize-controller", Force: true})
		return err
	}
	must.Do(t, apply())
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
	r := rollout("--steps=50%,100%", "--every=2s")
	stop()
	tool.Wait()
	if r.status != 0 || showing("after") != 12 {
		t.Errorf("%+v, in %d pods", r, showing("after"))
	}

	patch(`{"metadata":{"annotations":{%q:"50%%"}}}`, volume.CanaryAnnotation)
	sub("abort", "taken back: no pod shows the canary")
	secret := must.Get(secrets.Get(t.Context(), "db", metav1.GetOptions{}))(t)
	isOurs := func(m metav1.ManagedFieldsEntry) bool { return m.Manager == "refvol-rollout" }
	if secret.Annotations[volume.CanaryAnnotation] != "0%" || !slices.ContainsFunc(secret.ManagedFields, isOurs) {
		t.Errorf("after the abort: %v of %v", secret.Annotations, secret.ManagedFields)
	}
}
