package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

func code(err error) codes.Code { return status.Code(err) }

func contextWithTimeout(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), d)
}

func checkIdentity(t *testing.T, n *node) {
	t.Helper()
	info, err := n.Identity().GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	if err != nil || info.GetName() != harness.DriverName || info.GetVendorVersion() == "" {
		t.Errorf("plugin info = %v, %v", info, err)
	}
	capabilities, err := n.Identity().GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
	if err != nil || len(capabilities.GetCapabilities()) != 0 {
		t.Errorf("plugin capabilities = %v, %v, want none", capabilities, err)
	}
	node, err := n.Node().NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	if err != nil || node.GetNodeId() != harness.NodeName {
		t.Errorf("node info = %v, %v", node, err)
	}
	answer, err := n.Node().NodeGetCapabilities(t.Context(), &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got []csi.NodeServiceCapability_RPC_Type
	for _, c := range answer.GetCapabilities() {
		got = append(got, c.GetRpc().GetType())
	}
	want := []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
	}
	if !slices.Equal(got, want) {
		t.Errorf("node capabilities = %v, want %v", got, want)
	}
}

func checkStats(t *testing.T, n *node, v *harness.Volume) {
	t.Helper()
	stats, err := n.Node().NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.ID(), VolumePath: n.Target(v)})
	if err != nil {
		t.Fatal(err)
	}
	for _, usage := range stats.GetUsage() {
		if usage.GetUsed() <= 0 || usage.GetTotal() < usage.GetUsed() || usage.GetAvailable() <= 0 {
			t.Errorf("usage = %v, want some used, less than all, and some left", usage)
		}
		if usage.GetUnit() == csi.VolumeUsage_BYTES && usage.GetUsed() < 10_000 {
			t.Errorf("bytes used = %d, want 10000 at least", usage.GetUsed())
		}
	}
	if len(stats.GetUsage()) != 2 {
		t.Errorf("usage = %v, want bytes and inodes", stats.GetUsage())
	}
	unknown := &csi.NodeGetVolumeStatsRequest{VolumeId: "csi-unknown", VolumePath: n.Target(v) + "2"}
	if _, err := n.Node().NodeGetVolumeStats(t.Context(), unknown); code(err) != codes.NotFound {
		t.Errorf("stats of an unknown volume: %v, want NotFound", err)
	}
}

func TestSocketsArePrivateAndStaleOnesReplaced(t *testing.T) {
	n := newNode(t)
	n.wantSockets()
	n.mustKill()
	n.wantSockets() // a crash leaves them
	n.mustStart()
	n.wantSockets()
}

func (n *node) wantSockets() {
	n.t.Helper()
	found, err := filepath.Glob(filepath.Join(n.RegistrationDir(), "*.sock"))
	if err != nil || len(found) != 1 {
		n.t.Fatalf("registration sockets = %v, %v, want one", found, err)
	}
	for _, path := range append(found, n.Socket()) {
		info, err := os.Lstat(path)
		if err != nil || info.Mode() != fs.ModeSocket|0o600 {
			n.t.Errorf("%s: %v, %v, want a socket of mode 0600", path, info.Mode(), err)
		}
	}
}

func TestWhatIsNoSocketIsNotReplaced(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	if err := n.Terminate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.Socket(), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := n.Start(t.Context())
	if err == nil || !strings.Contains(err.Error(), n.Socket()) {
		t.Errorf("start over a file: %v, want an error that names it", err)
	}
	if data, err := os.ReadFile(n.Socket()); string(data) != "precious" {
		t.Errorf("the file now holds %q, %v", data, err)
	}
}

// TestRegistration does what the kubelet's plugin watcher does.
func TestRegistration(t *testing.T) {
	n := newNode(t, anyPort)
	if err := n.ready(); err == nil {
		t.Error("ready before the kubelet has registered the driver")
	}
	found, err := filepath.Glob(filepath.Join(n.RegistrationDir(), "*.sock"))
	if err != nil || len(found) != 1 {
		t.Fatalf("registration sockets = %v, %v, want one", found, err)
	}
	kubelet := dialRegistration(t, found[0])
	info, err := kubelet.GetInfo(t.Context(), &registration.InfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if info.GetType() != registration.CSIPlugin || info.GetName() != harness.DriverName ||
		info.GetEndpoint() != n.Socket() || !slices.Equal(info.GetSupportedVersions(), []string{"1.0.0"}) {
		t.Errorf("info = %v", info)
	}
	notify := func(s *registration.RegistrationStatus) {
		t.Helper()
		if _, err := kubelet.NotifyRegistrationStatus(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	notify(&registration.RegistrationStatus{PluginRegistered: false, Error: "no such luck"})
	if err := n.ready(); err == nil {
		t.Error("ready after a refused registration")
	}
	notify(&registration.RegistrationStatus{PluginRegistered: true})
	harness.Eventually(t, soon, func() error { return n.ready() }) // its rights may not be known yet
	if log, err := os.ReadFile(n.LogPath()); !strings.Contains(string(log), "no such luck") {
		t.Errorf("the log does not tell why the registration failed (%v)", err)
	}
}

// dialRegistration connects to the registration socket as the kubelet does.
func dialRegistration(t *testing.T, path string) registration.RegistrationClient {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return registration.NewRegistrationClient(conn)
}

// get fetches a URL over a connection of its own, so that none is left open.
func get(t *testing.T, url string) (body string, status int, err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return "", 0, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), resp.StatusCode, err
}

// ready returns what the plugin says of why it is not ready. It must run with anyPort.
func (n *node) ready() error {
	n.t.Helper()
	address := n.servingAddress()
	body, status, err := get(n.t, "http://"+address+"/readyz")
	if err != nil {
		n.t.Fatal(err)
	}
	if status != 200 {
		return errors.New(body)
	}
	if _, status, err := get(n.t, "http://"+address+"/healthz"); err != nil || status != 200 {
		return fmt.Errorf("/healthz: %d, %w", status, err)
	}
	return nil
}
