package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestValuesThatAreNotSupported(t *testing.T) {
	t.Setenv("NODE_NAME", "node-1")
	const (
		profiles = "must be a loopback address, such as 127.0.0.1:6060: profiles are not for the network"
		names    = "must be a loopback address, such as 127.0.0.1:9811: the names of all pods and objects are not for the network"
	)
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--change-detection=watch"}, `--change-detection: Unsupported value: "watch": supported by this version: "Watch", "Cache", "Get"`},
		{[]string{"--change-detection="}, `--change-detection: Unsupported value: "": supported by this version: "Watch", "Cache", "Get"`},
		{[]string{"--identity=Pod"}, `--identity: Unsupported value: "Pod": supported by this version: "plugin", "pod", "node"`},
		{
			[]string{"--identity=node", "--cross-namespace"},
			"--cross-namespace: Forbidden: with --identity=node: a node may read only what the specs of its pods name, and these name objects of their own namespaces",
		},
		{[]string{"--identity=node", "--node-name="}, "--node-name: Required value: or set NODE_NAME"},
		{
			[]string{"--identity=node", "--node-name=Node_1"},
			`--node-name: Invalid value: "Node_1": must be the name of a Node object: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`,
		},
		{[]string{"--default-spread=2h"}, "--default-spread: Invalid value: 2h0m0s: must be a duration from 1s to 1h, such as 5m, or 0s for none"},
		{[]string{"--max-volume-size=1Gi"}, `--max-total-size: Invalid value: "512Mi": must not be less than --max-volume-size, which is 1Gi`},
		{[]string{"--max-total-size=16Mi"}, `--max-total-size: Invalid value: "16Mi": must not be less than --max-volume-size, which is 32Mi`},
		{[]string{"--publish-wait=-1s"}, "--publish-wait: Invalid value: -1s: must not be negative"},
		{[]string{"--resync-interval=0"}, "--resync-interval: Invalid value: 0s: must be positive"},
		{[]string{"--profiling-address=:6060"}, `--profiling-address: Invalid value: ":6060": ` + profiles},
		{[]string{"--profiling-address=localhost:6060"}, `--profiling-address: Invalid value: "localhost:6060": ` + profiles}, // whatever that resolves to
		{[]string{"--profiling-address=6060"}, `--profiling-address: Invalid value: "6060": must be a loopback address and a port, such as 127.0.0.1:6060`},
		{[]string{"--status-address=0.0.0.0:9811"}, `--status-address: Invalid value: "0.0.0.0:9811": ` + names},
		{[]string{"--status-address=localhost:9811"}, `--status-address: Invalid value: "localhost:9811": ` + names},
		{[]string{"--status-address=:9811"}, `--status-address: Invalid value: ":9811": ` + names},
		{[]string{"--status-address=[::ffff:10.0.0.1]:9811"}, `--status-address: Invalid value: "[::ffff:10.0.0.1]:9811": ` + names},
		{[]string{"--status-address=127.0.0.1"}, `--status-address: Invalid value: "127.0.0.1": must be a loopback address and a port, such as 127.0.0.1:9811`},
		{
			[]string{"--startup-taint=x:Never", "--registration-dir=/r"},
			`--startup-taint: Invalid value: "x:Never": must be the key of a taint, without value and effect: name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`,
		},
		{[]string{"--startup-taint=x"}, "--startup-taint: needs --registration-dir: the taint goes when the kubelet has confirmed the registration"},
		{[]string{"--node-name="}, "--node-name: Required value: or set NODE_NAME"},
		{[]string{"--identity=none", "--node-name="}, `--identity: Unsupported value: "none": supported by this version: "plugin", "pod", "node"` +
			"\n--node-name: Required value: or set NODE_NAME"},
	} {
		_, _, err := runCommand(t, append([]string{"serve"}, test.args...)...)
		if err == nil || err.Error() != test.want {
			t.Errorf("%q: got %v, want %s", test.args, err, test.want)
		}
	}
}

func TestSizes(t *testing.T) {
	const form = "must be a positive quantity such as 32Mi"
	for _, test := range []struct {
		volume, total, cached string
		want                  sizes
		err                   string
	}{
		{volume: "32Mi", total: "512Mi", cached: "256Mi", want: sizes{32 << 20, 512 << 20, 256 << 20}},
		{volume: "1", total: "1e3", cached: "8", want: sizes{1, 1000, 8}},
		{volume: "1Mi", total: "1024Ki", cached: "1", want: sizes{1 << 20, 1 << 20, 1}},
		{volume: "1Mi", total: "1M", cached: "1", err: `--max-total-size: Invalid value: "1M": must not be less than --max-volume-size, which is 1Mi`},
		{volume: "1k", total: "1Gi", cached: "1Gi", want: sizes{1000, 1 << 30, 1 << 30}},
		{volume: "", total: "1", cached: "1", err: `--max-volume-size: Invalid value: "": ` + form},
		{volume: "0", total: "1", cached: "1", err: `--max-volume-size: Invalid value: "0": ` + form},
		{volume: "1", total: "-1Mi", cached: "1", err: `--max-total-size: Invalid value: "-1Mi": ` + form},
		{volume: "16MB", total: "big", cached: "0", err: `--max-volume-size: Invalid value: "16MB": ` + form + "\n" +
			`--max-total-size: Invalid value: "big": ` + form + "\n" + `--max-cached-size: Invalid value: "0": ` + form},
	} {
		o := &serveOptions{maxVolumeSize: test.volume, maxTotalSize: test.total, maxCachedSize: test.cached}
		got, err := o.sizes()
		if test.err != "" {
			if err == nil || err.Error() != test.err {
				t.Errorf("%q, %q: got %v, want %s", test.volume, test.total, err, test.err)
			}
			continue
		}
		if err != nil || got != test.want {
			t.Errorf("%q, %q, %q: got %v, %v", test.volume, test.total, test.cached, got, err)
		}
	}
}

// A failed start is an error of run, whose text says what was tried.
func TestAStartThatFails(t *testing.T) {
	t.Setenv("NODE_NAME", "node-1")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBECONFIG", "")
	dir := t.TempDir()
	none := filepath.Join(dir, "none")
	kubeconfig := filepath.Join(dir, "kubeconfig")
	writeFile(t, kubeconfig, "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n"+
		"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--kubeconfig=" + none, "--max-volume-size=x"}, `--max-volume-size: Invalid value: "x"`},
		{[]string{"--kubeconfig=" + none}, "configure the client of the API server: "},
		{nil, "configure the client of the API server: "},
		{[]string{"--kubeconfig=" + kubeconfig, "--identity=pod", "--kubelet-dir=" + none}, none},
		{[]string{"--kubeconfig=" + kubeconfig, "--identity=node", "--kubelet-dir=" + none}, none},
		{[]string{"--kubeconfig=" + kubeconfig, "--kubelet-dir=" + none}, none},
		{[]string{"--kubeconfig=" + kubeconfig, "--driver-name=../x"}, "mount options: Driver: Invalid value"},
	} {
		_, _, err := runCommand(t, append([]string{"serve", "--http-address=", "--v=10"}, test.args...)...)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: got %v, want %s", test.args, err, test.want)
		}
	}
}
