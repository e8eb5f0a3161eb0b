package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/refvol/refvol/internal/doclines"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/must"
)

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

// TestCheck: what --label says of a namespace is tested with an API server, in e2e/suites/manifests.
func TestCheck(t *testing.T) {
	good, bad := manifestOf(t, "good.yaml", "secret: db"), manifestOf(t, "bad.yaml", "secret: db, uid: x, gid: x")
	unnamed := manifestOf(t, "unnamed.yaml", "secret: tls")
	const input = "must specify one of -f, -k and --label (--label=live -n NAMESPACE checks a live label)"
	for _, test := range []struct {
		args []string
		err  string
		want []string // texts of the output, or nil if the command must refuse
	}{
		{[]string{"-f", good}, "", []string{
			"default    pod/app   secret/db  all   no        spec.volumes[0].csi.volumeAttributes.secret\n",
			"1 workload, 2 references, 0 warnings, 0 problems\n",
		}},
		{[]string{"--filename", good, "--namespace", "ns"}, "", []string{"ns         pod/app"}},
		{[]string{"-f", bad}, "check: 2 problems", []string{
			"problem: " + bad + ", document 1: Pod default/app: spec.volumes[0].csi.volumeAttributes.uid: Invalid value",
		}},
		{[]string{"-f", unnamed, "--identity=node"}, "check: 1 problem", []string{
			"problem: " + unnamed + ", document 1: Pod default/app: spec.volumes[0].csi.volumeAttributes.secret: the pod's spec does not name Secret \"default/tls\" itself, which --identity=node of the plugin needs: add a volume of the pod that names it, and show that by a volume source\n",
		}},
		{[]string{"-f", bad, "--driver-name", "other.example.com"}, "", []string{"1 workload, 1 reference, 1 warning, 0 problems\n"}},
		{nil, input, nil},
		{[]string{"--live", "-n", "shop"}, input, nil},
		{[]string{"--label=restarts", "-n", "shop"}, `--label: "restarts" is none of restart, live`, nil},
		{[]string{"--label=restart"}, "--label needs -n NAMESPACE", nil},
		{[]string{"--label=restart", "-n", "shop", "-f", good}, "--label checks the pods of a namespace, and can't be used with -f or -k", nil},
		{[]string{"--label=restart", "-n", "refvol-system"}, "the label refvol.dev/restart changes nothing in namespace refvol-system", nil},
		{[]string{"--label=live", "-n", "kube-system"}, "the label refvol.dev/live changes nothing in namespace kube-system", nil},
		{[]string{"--label=live", "-n", "shop", "--max-volume-size=32M!"}, `--max-volume-size: "32M!" is not a positive quantity, such as 32Mi`, nil},
		{[]string{"-f", good, "--identity=pods"}, `--identity: "pods" is none of plugin, pod, node`, nil},
		{[]string{"-f", good, "--change-detection=watch"}, `--change-detection: "watch" is none of Watch, Cache, Get`, nil},
		{[]string{"-f", "/does/not/exist"}, "read manifests: lstat /does/not/exist: no such file or directory", nil},
		{
			[]string{"-f", good, "--live", "--kubeconfig=/does/not/exist"},
			"find the kubeconfig's namespace: stat /does/not/exist: no such file or directory", nil,
		},
		{[]string{good}, `unknown command "` + good + `" for "kubectl refvol check"`, nil},
	} {
		out, _, err := runCommand(t, append([]string{"check"}, test.args...)...)
		status, refuses := exitStatus(err), test.want == nil
		if message(err) != test.err || (status != 0) != (err != nil) || (status == unknown) != refuses || refuses && out != "" {
			t.Errorf("%q: %v, status %d, want %q; printed %q", test.args, err, status, test.err, out)
		}
		for _, want := range test.want {
			if !strings.Contains(out, want) {
				t.Errorf("%q: %q is not in\n%s", test.args, want, out)
			}
		}
	}
}

// The example in the documents equals the command's output.
func TestCheckExample(t *testing.T) {
	text := must.Get(os.ReadFile("../../docs/check.md"))(t)
	block := func(language string) string {
		blocks := doclines.Blocks(string(text), language)
		if len(blocks) == 0 {
			t.Fatalf("docs/check.md has no %s", language)
		}
		return blocks[0]
	}
	t.Chdir(t.TempDir())
	writeFile(t, "app.yaml", block("yaml"))
	args, isOurs := strings.CutPrefix(block("sh"), "kubectl refvol check ")
	if !isOurs {
		t.Fatalf("docs/check.md runs %s", block("sh"))
	}
	out, _, err := runCommand(t, append([]string{"check"}, strings.Fields(args)...)...)
	got := out + "Error: " + message(err) + "\n"
	if want := block("text"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Manifests without a namespace get the kubeconfig's.
func TestCheckNamespace(t *testing.T) {
	file := manifestOf(t, "f.yaml", "secret: db")
	for context, want := range map[string]string{"": "default", ", namespace: team": "team"} {
		kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
		writeFile(t, kubeconfig, "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"+
			"contexts: [{name: c, context: {cluster: c"+context+"}}]\n")
		if out, _, err := runCommand(t, "check", "-f", file, "--kubeconfig", kubeconfig); err != nil || !strings.Contains(out, "\n"+want+" ") {
			t.Errorf("%s: %v, want %s\n%s", context, err, want, out)
		}
	}
}

// TestCheckInputs: files are found as kubectl finds them, and each is named. Without kubectl, the error says what -k needs.
func TestCheckInputs(t *testing.T) {
	t.Run("without kubectl", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		_, _, err := runCommand(t, "check", "-k", "overlay")
		const want = "build the kustomization overlay: -k runs kubectl: executable file not found in $PATH"
		if message(err) != want || exitStatus(err) != unknown {
			t.Errorf("got %v, status %d, want %s", err, exitStatus(err), want)
		}
	})
	dir := t.TempDir()
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\n"
	must.Do(t, os.MkdirAll(filepath.Join(dir, "below"), 0o700))
	writeFile(t, filepath.Join(dir, "a.yaml"), fmt.Sprintf(pod, "a"))
	writeFile(t, filepath.Join(dir, "notes.txt"), "no manifest")
	writeFile(t, filepath.Join(dir, "below", "b.json"), `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "b"}}`)
	writeFile(t, filepath.Join(dir, "kustomization.yaml"), "resources: [a.yaml]\nnamespace: made\n")
	kubectl := t.TempDir()
	t.Setenv("PATH", kubectl+string(os.PathListSeparator)+os.Getenv("PATH"))
	writeFile(t, filepath.Join(kubectl, "kubectl"), fmt.Sprintf(`#!/bin/sh
if [ "$*" != "kustomize -- %s" ]; then echo "password: %s" >&2; exit 1; fi
printf 'apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: made}\n'
`, dir, leak.Value))
	must.Do(t, os.Chmod(filepath.Join(kubectl, "kubectl"), 0o700))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/c.yaml" {
			http.NotFound(w, r)
			return
		}
		_, _ = fmt.Fprintf(w, pod, "c")
	}))
	defer server.Close()
	for name, test := range map[string]struct {
		args []string
		want string
		err  string
	}{
		"a directory":                  {[]string{"-f", dir}, "a", "check: 1 problem"}, // the kustomization has no apiVersion
		"recursively":                  {[]string{"-R", "-f", dir}, "a b", "check: 1 problem"},
		"below":                        {[]string{"-f", filepath.Join(dir, "below")}, "b", ""},
		"a kustomization":              {[]string{"-k", dir}, "made/a", ""},
		"a URL":                        {[]string{"-f", server.URL + "/c.yaml"}, "c", ""},
		"no URL":                       {[]string{"-f", server.URL + "/d.yaml"}, "", `read manifests: unable to read URL "` + server.URL + `/d.yaml", server reported 404 Not Found`},
		"no manifest":                  {[]string{"-f", t.TempDir()}, "", "read manifests: error reading ["},
		"a kustomization that is none": {[]string{"-k", filepath.Join(dir, "below")}, "", "build the kustomization " + filepath.Join(dir, "below") + ": run `kubectl kustomize "},
		"both":                         {[]string{"-k", dir, "-f", dir}, "", "the -k flag can't be used with -f or -R"},
	} {
		out, _, err := runCommand(t, append([]string{"check", "-o", "jsonpath={range .workloads[*]}{.namespace}/{.name} {end}"}, test.args...)...)
		got := strings.TrimSpace(strings.ReplaceAll(out, "default/", ""))
		if got != test.want || !strings.HasPrefix(message(err), test.err) || (err == nil) != (test.err == "") {
			t.Errorf("%s: got %q, %v; want %q, %s", name, got, err, test.want, test.err)
		}
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	must.Do(t, os.WriteFile(path, []byte(text), 0o600))
}
