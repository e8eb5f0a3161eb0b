package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/internal/leak"
)

// runCheck runs `kubectl refvol check` on manifests that it gets on its standard input.
func runCheck(t *testing.T, manifests string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	program, err := shared.refvol()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, append([]string{"check", "-f", "-"}, args...)...)
	// What the machine's user has configured is no part of the test.
	cmd.Env = append(os.Environ(), "KUBECONFIG=", "HOME="+t.TempDir())
	cmd.Stdin = strings.NewReader(manifests)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if err := leak.Check("the report", out.String()+errOut.String()); err != nil {
		t.Error(err)
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

func TestCheckLive(t *testing.T) {
	t.Parallel()
	n := node{t: t, namespace: newNamespace(t)}
	live := []string{"--live", "-n", n.namespace, "--kubeconfig", shared.Kubeconfig()}
	check := func(app, db string, problems int) {
		t.Helper()
		stdout, stderr, status := runCheck(t, checkedPod, append([]string{"-o", "json"}, live...)...)
		none := "ConfigMap/missing exists=no missing=[] may=not needed"
		secret, configMap := fmt.Sprintf("Secret/db exists=%s may=not needed", db), fmt.Sprintf("ConfigMap/app exists=%s missing=[] may=not needed", app)
		if got, want := checked(t, stdout), []string{none, secret, configMap, none, secret}; !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if status != min(problems, 1) || problems > 0 && stderr != fmt.Sprintf("Error: check: %d problems\n", problems) {
			t.Errorf("status %d, %s, want %d problems", status, stderr, problems)
		}
	}
	check("no", "no missing=[]", 3)
	n.secret("db", map[string]string{"other": n.canary()})
	if _, err := n.tryConfigMap(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "app"}, Data: map[string]string{"text": n.canary()}, BinaryData: map[string][]byte{"binary": []byte(n.canary())},
	}); err != nil {
		t.Fatal(err)
	}
	check("yes", "yes missing=[password]", 2)
	stdout, _, _ := runCheck(t, checkedPod, live...)
	if want := "spec.containers[0].env[0].valueFrom.secretKeyRef.name: Secret \"" + n.namespace + "/db\" has no key \"password\"\n"; !strings.Contains(stdout, want) {
		t.Errorf("with another key: %s", stdout)
	}
	n.secret("db", map[string]string{"password": n.canary()})
	check("yes", "yes missing=[]", 0)
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
