package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// runCheck runs `refvol-plugin check` on manifests that it gets on its standard input.
func runCheck(t *testing.T, manifests string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), shared.plugin, append([]string{"check", "-f", "-"}, args...)...)
	// What the machine's user has configured is no part of the test.
	cmd.Env = append(os.Environ(), "KUBECONFIG=", "HOME="+t.TempDir())
	cmd.Stdin = strings.NewReader(manifests)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

const checkedPod = `
apiVersion: v1
kind: Pod
metadata: {name: app}
spec:
  serviceAccountName: web
  containers:
  - name: app
    env: [{name: PASSWORD, valueFrom: {secretKeyRef: {name: db, key: password}}}]
    envFrom: [{configMapRef: {name: missing, optional: true}}]
  volumes:
  - name: settings
    csi:
      driver: csi.refvol.dev
      readOnly: true
      volumeAttributes:
        sources: |
          - configMap: {name: app, items: [{key: text, path: text}, {key: binary, path: binary}]}
          - podEnv: {path: app.env, container: app}
`

// checked is what `check -o json` says of one reference, in one line.
func checked(t *testing.T, stdout string) []string {
	t.Helper()
	var report struct {
		Workloads []struct {
			References []struct {
				Kind, Name, Exists, MayGet string
				MissingKeys                []string
			}
		}
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%v in %s", err, stdout)
	}
	var all []string
	for _, w := range report.Workloads {
		for _, r := range w.References {
			all = append(all, fmt.Sprintf("%s/%s exists=%s missing=%v may=%s", r.Kind, r.Name, r.Exists, r.MissingKeys, r.MayGet))
		}
	}
	return all
}

func wantChecked(t *testing.T, stdout string, want ...string) {
	t.Helper()
	if got := checked(t, stdout); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestCheckLive(t *testing.T) {
	t.Parallel()
	const canary = "hunter2-of-check"
	namespace := newNamespace(t)
	client := shared.Client()
	live := []string{"--live", "-n", namespace, "--kubeconfig", shared.Kubeconfig()}
	asJSON := append([]string{"-o", "json"}, live...)

	stdout, stderr, status := runCheck(t, checkedPod, asJSON...)
	if status != 1 || stderr != "Error: check: 3 problems\n" {
		t.Errorf("with nothing there: status %d, %s", status, stderr)
	}
	wantChecked(t, stdout, "ConfigMap/missing exists=no missing=[] may=not needed", "Secret/db exists=no missing=[] may=not needed",
		"ConfigMap/app exists=no missing=[] may=not needed", "ConfigMap/missing exists=no missing=[] may=not needed", "Secret/db exists=no missing=[] may=not needed")

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "db"}, StringData: map[string]string{"other": canary}}
	if _, err := client.CoreV1().Secrets(namespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Data: map[string]string{"text": canary}, BinaryData: map[string][]byte{"binary": []byte(canary)}}
	if _, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	stdout, _, status = runCheck(t, checkedPod, live...)
	want := "spec.containers[0].env[0].valueFrom.secretKeyRef.name: Secret \"" + namespace + "/db\" has no key \"password\"\n"
	if status != 1 || !strings.Contains(stdout, want) || !strings.Contains(stdout, "2 problems\n") {
		t.Errorf("with another key: status %d, %s", status, stdout)
	}
	if strings.Contains(stdout, canary) {
		t.Errorf("a value shows in %s", stdout)
	}

	secret.StringData = map[string]string{"password": canary}
	if _, err := client.CoreV1().Secrets(namespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, status = runCheck(t, checkedPod, asJSON...)
	if status != 0 || stderr != "" || strings.Contains(stdout, canary) {
		t.Errorf("with all there: status %d, %s", status, stderr)
	}
	wantChecked(t, stdout, "ConfigMap/missing exists=no missing=[] may=not needed", "Secret/db exists=yes missing=[] may=not needed",
		"ConfigMap/app exists=yes missing=[] may=not needed", "ConfigMap/missing exists=no missing=[] may=not needed", "Secret/db exists=yes missing=[] may=not needed")
}

// What the caller may not see or ask is unknown, and no problem.
func TestCheckLiveWithoutRights(t *testing.T) {
	t.Parallel()
	stdout, stderr, status := runCheck(t, checkedPod, "--live", "-n", newNamespace(t), "--kubeconfig", shared.powerless, "-o", "json")
	if status != 0 || stderr != "" {
		t.Errorf("status %d, %s", status, stderr)
	}
	for _, line := range checked(t, stdout) {
		if !strings.HasSuffix(line, " exists=unknown missing=[] may=not needed") {
			t.Errorf("got %s", line)
		}
	}
}
