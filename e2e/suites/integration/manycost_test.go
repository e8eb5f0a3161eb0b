package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/supervise"
)

// costs is what each step has taken at least, by the clock and of processors.
type costs struct {
	steps     []string
	took, cpu map[string]time.Duration
}

// take runs a step, of a plugin that has used before at its begin.
func (c *costs) take(m *many, name string, before time.Duration, step func()) {
	m.t.Helper()
	begin := time.Now()
	step()
	took, cpu := time.Since(begin), m.cpuTime()-before
	if c.took[name] == 0 {
		c.steps = append(c.steps, name)
		c.took[name], c.cpu[name] = took, cpu
	}
	c.took[name], c.cpu[name] = min(c.took[name], took), min(c.cpu[name], cpu)
}

// String has the form that e2e/suites/kernels compares.
func (c *costs) String() string {
	var all []string
	for _, step := range c.steps {
		all = append(all, fmt.Sprintf("%s_s=%.2f %s_cpu_s=%.2f", step, c.took[step].Seconds(), step, c.cpu[step].Seconds()))
	}
	return strings.Join(all, " ")
}

// TestCostOfManyVolumes takes what the publish, an update and a restart of many volumes cost, of
// some rounds the least. A start reads the mount table once, and what comes later does not.
func TestCostOfManyVolumes(t *testing.T) {
	t.Parallel()
	tables := supervise.New("/proc", "openat")
	t.Cleanup(func() {
		if err := tables.Close(); err != nil {
			t.Error(err)
		}
	})
	binary, err := shared.plain()
	if err != nil {
		t.Fatal(err)
	}
	count := false // which slows down every open
	m := newManyAt(t, harness.Scaled(50, 1500), &supervisedNode{Supervisor: tables, node: newNodeWith(t, harness.PluginOptions{
		Binary: binary, Kubeconfig: shared.kubeconfig, Args: []string{"-v=2"},
		BeforeFork: func() error {
			if !count {
				return nil
			}
			return tables.BeforeFork()
		},
	})})
	c := costs{took: map[string]time.Duration{}, cpu: map[string]time.Duration{}}
	for range harness.Scaled(1, 3) {
		c.take(m, "publish", m.cpuTime(), m.publishAll)
		c.take(m, "update", m.cpuTime(), func() {
			m.updateAll()
			m.allCurrent(tenMinutes)
		})
		m.mustKill()
		m.updateAll()
		c.take(m, "restart", 0, func() {
			m.mustStart()
			m.allCurrent(tenMinutes)
		})
		for _, v := range m.volumes {
			m.mustUnpublish(v)
		}
	}
	m.publishAll()
	m.mustKill()
	m.updateAll()
	count = true
	m.Arm(supervise.CountOnly)
	m.mustStart()
	m.allCurrent(tenMinutes)
	m.mustUnpublish(m.volumes[0])
	m.mustPublish(m.volumes[0])
	calls, _ := m.Disarm()
	reads := 0
	// Before the plugin does anything, Go's runtime looks into the table for its cgroup.
	own := slices.IndexFunc(calls, func(c supervise.Call) bool { return strings.HasSuffix(c.Path, "/csi.sock.lock") })
	for _, call := range calls[max(own, 0):] {
		if strings.HasSuffix(call.Path, "/mountinfo") || strings.HasSuffix(call.Path, "/mounts") {
			reads++
		}
	}
	if own < 0 || reads != 1 || len(calls) < len(m.volumes) {
		t.Errorf("of %d opens %d were of the mount table, want 1, and an open for each volume at least", len(calls), reads)
	}
	t.Logf("%d volumes: %s", len(m.volumes), &c)
}

// tenMinutes is long enough for thousands of updates on an emulated machine.
const tenMinutes = 10 * time.Minute

// updateAll gives each object its next generation, some at a time.
func (m *many) updateAll() {
	m.t.Helper()
	core := shared.Client().CoreV1()
	err := inParallel(len(m.shapes), 16, func(i int) (err error) {
		m.generations[i]++
		o := m.shapes[i].objects[0]
		meta, data := metav1.ObjectMeta{Name: o.name}, o.data(m.generations[i])
		if o.kind == "secret" {
			_, err = core.Secrets(m.namespace).Update(m.t.Context(), &corev1.Secret{ObjectMeta: meta, StringData: data}, metav1.UpdateOptions{})
		} else {
			_, err = core.ConfigMaps(m.namespace).Update(m.t.Context(), &corev1.ConfigMap{ObjectMeta: meta, Data: data}, metav1.UpdateOptions{})
		}
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
}
