// Package sanity runs csi-sanity, the conformance suite of the Kubernetes CSI
// project, against the plugin's real binary on a real API server.
//
// It is a module of its own, so that what csi-sanity brings stays out of the other suites.
// Nothing here may import a package of the plugin: the suite sees its sockets only.
//
// csi-sanity plays neither a kubelet nor a pod, and a volume of its own comes from
// CreateVolume, which a driver of inline volumes lacks. The wrapper stands between it
// and the plugin and adds just that.
package sanity

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	csisanity "github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	suiteName = "csi-sanity"
	namespace = "sanity"
	configMap = "app"
	podUID    = "7b1f3f4e-8f0e-4a39-9d0b-3f9a4d1c2b60"
	// interrupts is a goroutine that ginkgo starts and never ends.
	interrupts = "github.com/onsi/ginkgo/v2/internal/interrupt_handler.(*InterruptHandler).registerForInterrupts.func2"
)

// driver is what csi-sanity runs against: the plugin, a control plane for it, and the
// wrapper.
type driver struct {
	*harness.Lab
	plugin  *harness.Plugin
	wrapper *wrapper
}

// shared is set by TestMain before the test runs, and constant from then on.
var shared *driver

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(ctx context.Context) (func() error, error) {
		d := &driver{}
		shared = d
		if err := d.start(ctx); err != nil {
			return nil, errors.Join(err, d.stop())
		}
		return d.stop, nil
	}, goleak.IgnoreAnyFunction(interrupts)))
}

func (d *driver) start(ctx context.Context) error {
	lab, err := harness.StartLab(ctx, true, os.Stderr)
	if err != nil {
		return err
	}
	d.Lab = lab
	if err := d.makeConfigMap(ctx); err != nil {
		return err
	}
	node := filepath.Join(d.Dir, "node")
	if err := os.Mkdir(node, 0o750); err != nil {
		return err
	}
	d.plugin, err = harness.StartPlugin(ctx, harness.PluginOptions{Binary: d.Plugin, Kubeconfig: d.Kubeconfig, Dir: node, Args: []string{"-v=10"}})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(d.target()), 0o750); err != nil {
		return err
	}
	d.wrapper, err = startWrapper(d.socket(), d.plugin.Socket(), namespace, configMap)
	return err
}

func (d *driver) makeConfigMap(ctx context.Context) error {
	core := d.Client().CoreV1()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := core.Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return err
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: configMap}, Data: map[string]string{"key": "value"}}
	_, err := core.ConfigMaps(namespace).Create(ctx, cm, metav1.CreateOptions{})
	return err
}

func (d *driver) stop() error {
	var errs []error
	if d.wrapper != nil {
		errs = append(errs, d.wrapper.close())
	}
	if d.plugin != nil {
		errs = append(errs, d.plugin.Close())
	}
	if d.Lab != nil {
		errs = append(errs, d.Stop())
	}
	return errors.Join(errs...)
}

// target is the parent of the target paths, as the kubelet makes it for a volume of
// the pod; csi-sanity makes and removes it for each case.
func (d *driver) target() string {
	return filepath.Join(d.plugin.KubeletDir(), "pods", podUID, "volumes", "kubernetes.io~csi", "settings")
}

func (d *driver) socket() string { return filepath.Join(d.Dir, "sanity.sock") }

func TestSanity(t *testing.T) {
	config := csisanity.NewTestConfig()
	config.Address = "unix://" + shared.socket()
	config.TargetPath = shared.target()
	config.StagingPath = filepath.Join(shared.Dir, "staging")
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
	checkNothingLeft(t, shared.plugin)
	if t.Failed() {
		t.Logf("last lines of the plugin's log:\n%s", shared.plugin.LogTail())
	}
}

// checkNothingLeft has the plugin have taken away all that it made.
func checkNothingLeft(t *testing.T, plugin *harness.Plugin) {
	t.Helper()
	mounts, err := plugin.VolumeMounts()
	if err != nil || len(mounts) > 0 {
		t.Errorf("mounts left: %+v, %v", mounts, err)
	}
	left, err := os.ReadDir(filepath.Dir(shared.target()))
	if err != nil || len(left) > 0 {
		t.Errorf("left of targets: %v, %v", left, err)
	}
}

// ours are the cases that this test leaves out: the plugin has no controller, and they would test the wrapper's. Others csi-sanity
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
