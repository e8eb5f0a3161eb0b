package metrics

import (
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/volume"
)

// State is the source of the gauges. Each scrape iterates over both sequences.
type State struct {
	Volumes iter.Seq[publisher.VolumeStatus]
	Objects iter.Seq[manager.ObjectStatus]
	// MaxBytes is the memory that the files of all volumes may use.
	MaxBytes int64
	// CachedBytes returns the memory of cached objects, of which MaxCachedBytes is the limit. It is called at each scrape.
	CachedBytes    func() int64
	MaxCachedBytes int64
}

// Show adds the metrics of the present state. A second call fails.
func (m *Metrics) Show(state State) error {
	if err := m.registry.Register(newStateCollector(state)); err != nil {
		return fmt.Errorf("register the metrics of volumes and objects: %w", err)
	}
	return nil
}

// ShowReadiness adds a condition of the plugin's readiness. err returns why it isn't met, or nil if it is. It is called at each scrape.
// Each name may be added once.
func (m *Metrics) ShowReadiness(name string, err func() error) error {
	return m.showWhether("refvol_ready", "Whether a condition is met that the plugin needs to be ready, as /readyz has it.",
		"condition", name, func() bool { return err() == nil })
}

// ShowRights adds the rights that the plugin needs, by name. missing returns the names of those that it lacks. It is called at each scrape.
// A second call fails.
func (m *Metrics) ShowRights(names []string, missing func() []string) error {
	for _, name := range names {
		err := m.showWhether("refvol_rights", "Whether the plugin's account has a right that it needs, as far as is known.",
			"right", name, func() bool { return !slices.Contains(missing(), name) })
		if err != nil {
			return err
		}
	}
	return nil
}

// showWhether adds a gauge that is 1 if yes returns true, and 0 otherwise.
func (m *Metrics) showWhether(name, help, label, value string, yes func() bool) error {
	opts := prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: prometheus.Labels{label: value}}
	err := m.registry.Register(prometheus.NewGaugeFunc(opts, func() float64 {
		if yes() {
			return 1
		}
		return 0
	}))
	if err != nil {
		return fmt.Errorf("register the metric of %s %s: %w", label, value, err)
	}
	return nil
}

// stateCollector reads the state at each scrape, so that no code has to keep gauges up to date.
type stateCollector struct {
	State
	volumes, bytes, maxBytes, withoutToken *prometheus.Desc
	objects, stale, maxStaleness           *prometheus.Desc
	cached, maxCached                      *prometheus.Desc
	opened                                 *prometheus.Desc
}

func newStateCollector(s State) *stateCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &stateCollector{
		State:        s,
		volumes:      desc("refvol_volumes", "Volumes by condition.", "condition"),
		bytes:        desc("refvol_volume_bytes", "Memory that the file systems of all volumes hold: whole pages, and 1 KiB for each inode."),
		maxBytes:     desc("refvol_volume_limit_bytes", "Memory that the files and inodes of all volumes may take: --max-total-size."),
		withoutToken: desc("refvol_volumes_without_token", "Volumes whose pod's service account has no usable token; only with --identity=pod."),
		cached:       desc("refvol_cached_bytes", "Memory that cached objects take: keys and values, 96 bytes for each key and 512 for each object. What several service accounts read counts for each of them."),
		maxCached:    desc("refvol_cached_limit_bytes", "Memory that cached objects may take for a new volume to be accepted: --max-cached-size."),
		objects:      desc("refvol_objects", "Referenced objects by kind and by what is known of them.", "kind", "state"),
		opened:       desc("refvol_shown_objects", "Objects that volumes show, by whether each of their files was opened since it shows what it shows.", "opened"),
		stale:        desc("refvol_stale_objects", "Objects whose watches can't be opened again, or whose requests fail."),
		maxStaleness: desc("refvol_object_staleness_max_seconds",
			"The longest time since the state of an object was last proved current whose watches or requests fail since then, 0 if there is none."),
	}
}

// Describe sends the descriptions.
func (c *stateCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.volumes, c.bytes, c.maxBytes, c.withoutToken, c.cached, c.maxCached, c.objects, c.stale, c.maxStaleness, c.opened} {
		to <- d
	}
}

// Collect sends the present state.
func (c *stateCollector) Collect(to chan<- prometheus.Metric) {
	c.collectVolumes(to)
	c.collectObjects(to)
}

func (c *stateCollector) collectVolumes(to chan<- prometheus.Metric) {
	counts := map[publisher.Condition]int{}
	var bytes int64
	withoutToken := 0
	objects := map[opened.State]int{}
	for v := range c.Volumes {
		counts[v.Condition]++
		bytes += v.Bytes
		if v.WithoutToken {
			withoutToken++
		}
		for ref := range v.Shown {
			objects[v.OpenState(ref)]++
		}
	}
	for _, state := range opened.States() {
		to <- gauge(c.opened, float64(objects[state]), string(state))
	}
	for _, condition := range publisher.Conditions() {
		to <- gauge(c.volumes, float64(counts[condition]), string(condition))
	}
	to <- gauge(c.bytes, float64(bytes))
	to <- gauge(c.maxBytes, float64(c.MaxBytes))
	to <- gauge(c.withoutToken, float64(withoutToken))
}

func (c *stateCollector) collectObjects(to chan<- prometheus.Metric) {
	type group struct {
		kind  volume.Kind
		state manager.ObjectState
	}
	counts := map[group]int{}
	stale, longest := 0, 0.0
	for o := range c.Objects {
		counts[group{o.Ref.Kind, o.State}]++
		if o.Watched && o.Stale {
			stale++
			longest = max(longest, age(o))
		}
	}
	for _, kind := range volume.Kinds() {
		for _, state := range manager.ObjectStates() {
			to <- gauge(c.objects, float64(counts[group{kind, state}]), string(kind), string(state))
		}
	}
	to <- gauge(c.cached, float64(c.CachedBytes()))
	to <- gauge(c.maxCached, float64(c.MaxCachedBytes))
	to <- gauge(c.stale, float64(stale))
	to <- gauge(c.maxStaleness, longest)
}

// age returns the seconds since an object was last proven current. For an object that was never proven, it counts from the first reference.
func age(o manager.ObjectStatus) float64 {
	proven := o.LastConfirmed
	if proven.IsZero() {
		proven = o.Since
	}
	return time.Since(proven).Seconds()
}

func gauge(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}
