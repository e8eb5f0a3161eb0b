// Package sanity runs csi-sanity, the conformance suite of the Kubernetes CSI
// project, against the plugin's real binary on a real API server.
//
// It is a module of its own, so that what csi-sanity brings stays out of the other suites.
// Nothing here may import a package of the plugin: the suite sees its sockets only.
//
// csi-sanity plays neither a kubelet nor a pod, and a volume of its own comes from
// CreateVolume, which a driver of inline volumes lacks. asKubelet adds just that.
package sanity

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	csisanity "github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
)

const (
	suiteName = "csi-sanity"
	namespace = "sanity"
	configMap = "app"
	podUID    = "7b1f3f4e-8f0e-4a39-9d0b-3f9a4d1c2b60"
	// interrupts is a goroutine that ginkgo starts and never ends.
	interrupts = "github.com/onsi/ginkgo/v2/internal/interrupt_handler.(*InterruptHandler).registerForInterrupts.func2"
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, nil, goleak.IgnoreAnyFunction(interrupts)))
}

// startPlugin starts the plugin, with a control plane that has the ConfigMap, until the end of the test. It returns the parent of the target
// paths too, as the kubelet makes it for a volume of the pod; csi-sanity makes and removes it for each case.
func startPlugin(t *testing.T) (lab *harness.Lab, plugin *harness.Plugin, target string) {
	t.Helper()
	lab = must.Get(harness.StartLab(t.Context(), true, os.Stderr))(t)
	t.Cleanup(func() { must.Do(t, lab.Stop()) })
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	must.Get(lab.Client().CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}))(t)
	must.Get(harness.PutObject(t.Context(), lab.Client(), namespace, "configMap", configMap, map[string]string{"key": "value"}))(t)
	plugin = must.Get(harness.StartPlugin(t.Context(), harness.PluginOptions{
		Binary: lab.Plugin, Kubeconfig: lab.Kubeconfig, Dir: filepath.Join(lab.Dir, "node"), Args: []string{"-v=10"},
	}))(t)
	t.Cleanup(func() { must.Do(t, plugin.Close()) })
	target = filepath.Join(plugin.KubeletDir(), "pods", podUID, "volumes", "kubernetes.io~csi", "settings")
	must.Do(t, os.MkdirAll(filepath.Dir(target), 0o750))
	return lab, plugin, target
}

// asKubelet is csi-sanity's way to the plugin. It adds what a kubelet puts into each publish of a read-only inline volume, also where
// csi-sanity leaves something else out on purpose: that alone is to be wrong. It answers itself for a controller of volumes for which
// nothing has to be done.
func asKubelet(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	switch answer := reply.(type) {
	case *csi.CreateVolumeResponse:
		if r, ok := req.(*csi.CreateVolumeRequest); ok {
			answer.Volume = &csi.Volume{VolumeId: r.GetName()}
		}
		return nil
	case *csi.DeleteVolumeResponse:
		return nil
	case *csi.ControllerGetCapabilitiesResponse:
		answer.Capabilities = []*csi.ControllerServiceCapability{{Type: &csi.ControllerServiceCapability_Rpc{
			Rpc: &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME},
		}}}
		return nil
	case *csi.GetPluginCapabilitiesResponse: // so that it runs the cases that need CreateVolume
		err := invoke(ctx, method, req, reply, conn, opts...)
		answer.Capabilities = append(answer.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{
			Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE},
		}})
		return err
	}
	switch r := req.(type) {
	case *csi.NodePublishVolumeRequest:
		publish := proto.CloneOf(r)
		publish.Readonly, publish.TargetPath = true, asTarget(r.GetTargetPath())
		publish.VolumeContext = map[string]string{
			"configMap":                              configMap,
			"csi.storage.k8s.io/pod.name":            "sanity",
			"csi.storage.k8s.io/pod.namespace":       namespace,
			"csi.storage.k8s.io/pod.uid":             podUID,
			"csi.storage.k8s.io/serviceAccount.name": "default",
			"csi.storage.k8s.io/ephemeral":           "true",
		}
		req = publish
	case *csi.NodeUnpublishVolumeRequest:
		req = &csi.NodeUnpublishVolumeRequest{VolumeId: r.GetVolumeId(), TargetPath: asTarget(r.GetTargetPath())}
	case *csi.NodeGetVolumeStatsRequest:
		stats := proto.CloneOf(r)
		stats.VolumePath = asTarget(r.GetVolumePath())
		req = stats
	}
	return invoke(ctx, method, req, reply, conn, opts...)
}

// asTarget gives csi-sanity's target the name that a kubelet's have. What csi-sanity made up
// is passed on.
func asTarget(path string) string {
	if filepath.Base(path) != "target" {
		return path
	}
	return filepath.Join(filepath.Dir(path), "mount")
}

func TestSanity(t *testing.T) {
	lab, plugin, target := startPlugin(t)
	config := csisanity.NewTestConfig()
	config.Address = "unix://" + plugin.Socket()
	config.DialOptions = append(config.DialOptions, grpc.WithUnaryInterceptor(asKubelet))
	config.TargetPath = target
	config.StagingPath = filepath.Join(lab.Dir, "staging")
	config.CheckPath = func(path string) (csisanity.PathKind, error) {
		return csisanity.CheckPath(asTarget(path), &csisanity.TestConfig{})
	}
	cases := csisanity.GinkgoTest(&config)
	var reports types.SpecReports
	ginkgo.ReportAfterSuite("keep the report", func(r ginkgo.Report) { reports = r.SpecReports })
	suite, reporter := ginkgo.GinkgoConfiguration()
	suite.SkipStrings = []string{"^" + regexp.QuoteMeta(suiteName+" "+ours)}
	reporter.NoColor = true
	gomega.RegisterFailHandler(ginkgo.Fail)
	ginkgo.RunSpecs(t, suiteName, suite, reporter)
	cases.Finalize()

	checkRun(t, reports)
	checkNothingLeft(t, plugin, filepath.Dir(target))
	if t.Failed() {
		t.Logf("last lines of the plugin's log:\n%s", plugin.LogTail())
	}
}

// checkNothingLeft has the plugin have taken away all that it made.
func checkNothingLeft(t *testing.T, plugin *harness.Plugin, targets string) {
	t.Helper()
	mounts, err := plugin.VolumeMounts()
	if err != nil || len(mounts) > 0 {
		t.Errorf("mounts left: %+v, %v", mounts, err)
	}
	left, err := os.ReadDir(targets)
	if err != nil || len(left) > 0 {
		t.Errorf("left of targets: %v, %v", left, err)
	}
}

// ours are the cases that this test leaves out: the plugin has no controller, and they would test what asKubelet answers. Others csi-sanity
// leaves out by itself, as the plugin announces no such capability: of snapshots, groups, stages, expansion, and health.
const ours = "Controller Service [Controller Server]"

// wantRun is how many cases run: fewer mean that csi-sanity has changed, or that a
// capability is no longer announced.
const wantRun = 17

// checkRun has all cases pass that did run, and as many as there should be.
func checkRun(t *testing.T, reports types.SpecReports) {
	t.Helper()
	run := 0
	for _, report := range reports {
		switch {
		case report.LeafNodeType != types.NodeTypeIt:
		case report.State.Is(types.SpecStatePassed):
			run++
			t.Logf("ran: %s", report.FullText())
		case !report.State.Is(types.SpecStateSkipped | types.SpecStatePending):
			t.Errorf("%q ended %s", report.FullText(), report.State)
		}
	}
	if run != wantRun {
		t.Errorf("%d cases ran, want %d", run, wantRun)
	}
}
