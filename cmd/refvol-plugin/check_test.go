package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/apiclient"
	"github.com/refvol/refvol/pkg/command"
)

// manifestOf returns the path of a file that holds a Pod with one volume.
func manifestOf(t *testing.T, name, attributes string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	writeFile(t, path, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: app}
spec:
  containers: [{name: app, envFrom: [{secretRef: {name: db}}]}]
  volumes:
  - {name: v, csi: {driver: csi.refvol.dev, readOnly: true, volumeAttributes: {%s}}}
`, attributes))
	return path
}

func TestCheck(t *testing.T) {
	good, bad := manifestOf(t, "good.yaml", "secret: db"), manifestOf(t, "bad.yaml", "secret: db, uid: x, gid: x")
	worse := manifestOf(t, "worse.yaml", "uid: x")
	unnamed, across := manifestOf(t, "unnamed.yaml", "secret: tls"), manifestOf(t, "across.yaml", "secret: db, namespace: other")
	for _, test := range []struct {
		args []string
		err  string
		want []string
	}{
		{args: []string{"-f", good}, want: []string{"default    pod/app   secret/db  all   no        spec.volumes[0].csi.volumeAttributes.secret\n", "1 workload, 2 references, 0 warnings, 0 problems\n"}},
		{args: []string{"--filename", good, "--namespace", "ns", "--output", "text"}, want: []string{"ns         pod/app"}},
		{args: []string{"-f", bad}, err: "check: 2 problems", want: []string{"problem: " + bad + ", document 1: Pod default/app: spec.volumes[0].csi.volumeAttributes.uid: Invalid value"}},
		{args: []string{"-f", good, "-f", worse}, err: "check: 2 problems", want: []string{"2 workloads, 3 references, 0 warnings, 2 problems\n"}},
		{args: []string{"-f", good, "--identity=node"}, want: []string{"1 workload, 2 references, 0 warnings, 0 problems\n"}},
		{args: []string{"-f", unnamed, "--identity=node"}, err: "check: 1 problem", want: []string{
			"problem: " + unnamed + ", document 1: Pod default/app: spec.volumes[0].csi.volumeAttributes.secret: the pod's spec does not name Secret \"default/tls\" itself, which --identity=node of the plugin needs: add a volume of the pod that names it, and show that by a volume source\n",
		}},
		{args: []string{"-f", across, "--identity=node"}, err: "check: 1 problem", want: []string{
			"spec.volumes[0].csi.volumeAttributes.secret: an object of another namespace: no volume shows it with --identity=node of the plugin\n", " 0 warnings, 1 problem\n",
		}},
		{args: []string{"-f", bad, "--driver-name", "other.example.com"}, want: []string{"1 workload, 1 reference, 1 warning, 0 problems\n"}},
	} {
		out, _, err := runCommand(t, append([]string{"check"}, test.args...)...)
		if message(err) != test.err {
			t.Errorf("%q: %v, want %q", test.args, err, test.err)
		}
		for _, want := range test.want {
			if !strings.Contains(out, want) {
				t.Errorf("%q: %q is not in\n%s", test.args, want, out)
			}
		}
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestCheckRefuses(t *testing.T) {
	file := manifestOf(t, "f.yaml", "secret: db")
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "-f: name a file of manifests, or - for the standard input"},
		{[]string{"-f", file, "-o", "yaml"}, `--output: "yaml" is none of text, json`},
		{[]string{"-f", file, "--driver-name="}, "--driver-name must not be empty"},
		{[]string{"-f", file, "--identity=pods"}, `--identity: "pods" is none of plugin, pod, node`},
		{[]string{"-f", file, "--change-detection=watch"}, `--change-detection: "watch" is none of Watch, Cache, Get`},
		{[]string{"-f", file, "--kubeconfig=/x"}, "--kubeconfig is for --live only"},
		{[]string{"-f", "/does/not/exist"}, "read manifests: open /does/not/exist: no such file or directory"},
		{[]string{"-f", "/"}, "read /: read /: is a directory"},
		{[]string{"-f", file, "--live", "--kubeconfig=/does/not/exist"}, "configure the client of the API server: stat /does/not/exist: no such file or directory"},
		{[]string{file}, `unknown command "` + file + `" for "refvol-plugin check"`},
		{[]string{"--unknown"}, "unknown flag: --unknown"},
	} {
		out, _, err := runCommand(t, append([]string{"check"}, test.args...)...)
		if message(err) != test.want || out != "" || command.ExitStatus(err) != 2 {
			t.Errorf("%q: %v, status %d, %q, want %q", test.args, err, command.ExitStatus(err), out, test.want)
		}
	}
}

// TestCheckExitStatus: a problem is told from an API server that doesn't answer.
func TestCheckExitStatus(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	writeFile(t, kubeconfig, `{"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
		"contexts": [{"name": "c", "context": {"cluster": "c"}}]}`)
	good, bad := manifestOf(t, "good.yaml", "secret: db"), manifestOf(t, "bad.yaml", "secret: db, uid: x")
	for _, test := range []struct {
		args []string
		want int
	}{
		{[]string{"-f", good}, 0},
		{[]string{"-f", bad}, 1},
		{[]string{"-f", good, "--live", "--kubeconfig", kubeconfig}, 2},
		{[]string{"-f", bad, "--live", "--kubeconfig", kubeconfig}, 2},
	} {
		_, _, err := runCommand(t, append([]string{"check"}, test.args...)...)
		if got := command.ExitStatus(err); got != test.want {
			t.Errorf("%q: status %d, want %d: %v", test.args, got, test.want, err)
		}
	}
}

// The documents' example is what the command prints.
func TestCheckExample(t *testing.T) {
	text, err := os.ReadFile("../../docs/check.md")
	if err != nil {
		t.Fatal(err)
	}
	block := func(language string) string {
		_, rest, found := strings.Cut(string(text), "```"+language+"\n")
		body, _, closed := strings.Cut(rest, "```\n")
		if !found || !closed {
			t.Fatalf("docs/check.md has no %s", language)
		}
		return body
	}
	t.Chdir(t.TempDir())
	writeFile(t, "app.yaml", block("yaml"))
	out, _, err := runCommand(t, "check", "-f", "app.yaml")
	got := "$ refvol-plugin check -f app.yaml\n" + out + "Error: " + message(err) + "\n"
	if want := block("console"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Manifests that name no namespace get the kubeconfig's.
func TestCheckLiveNamespace(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	const text = `{"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
		"contexts": [{"name": "c", "context": {"cluster": "c"%s}}]}`
	for context, want := range map[string]string{``: "default", `, "namespace": "team"`: "team"} {
		writeFile(t, kubeconfig, fmt.Sprintf(text, context))
		config, namespace, err := apiclient.UserConfig(kubeconfig, "refvol-plugin")
		if err != nil || namespace != want {
			t.Errorf("got %q, %v, want %q", namespace, err, want)
		}
		if err == nil && (config.Timeout <= 0 || config.Host != "http://127.0.0.1:1") {
			t.Errorf("got %+v", config)
		}
	}
}
