package metrics

import (
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/volume"
)

// State is what the gauges show. Each scrape goes through both sequences.
type State struct {
	Volumes iter.Seq[publisher.VolumeStatus]
	Objects iter.Seq[manager.ObjectStatus]
	// MaxBytes is how much memory the files of all volumes may take.
	MaxBytes int64
	// CachedBytes returns how much memory distinct objects take, of MaxCachedBytes. It is called at each scrape.
	CachedBytes    func() int64
	MaxCachedBytes int64
}

// Show adds the metrics of the present state. It may be called once.
func (m *Metrics) Show(state State) error {
	if err := m.registry.Registerer().Register(newStateCollector(state)); err != nil {
		return fmt.Errorf("register the metrics of volumes and objects: %w", err)
	}
	return nil
}

// ShowReadiness adds a condition that the plugin needs to be ready. err returns why it isn't met, nil
// if it is, and is called at each scrape. The name of each condition may be added once.
func (m *Metrics) ShowReadiness(name string, err func() error) error {
	ready := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "refvol_ready", Help: describe("Whether a condition is met that the plugin needs to be ready, as /readyz has it."),
		ConstLabels: prometheus.Labels{"condition": name},
	}, func() float64 {
		if err() != nil {
			return 0
		}
		return 1
	})
	if err := m.registry.Registerer().Register(ready); err != nil {
		return fmt.Errorf("register the metric of condition %s: %w", name, err)
	}
	return nil
}

// ShowRights adds the rights that the plugin needs, by their names. missing returns the names of those that it
// lacks, and is called at each scrape. It may be called once.
func (m *Metrics) ShowRights(names []string, missing func() []string) error {
	for _, name := range names {
		has := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "refvol_rights", Help: describe("Whether the plugin's account has a right that it needs, as far as is known."),
			ConstLabels: prometheus.Labels{"right": name},
		}, func() float64 {
			if slices.Contains(missing(), name) {
				return 0
			}
			return 1
		})
		if err := m.registry.Registerer().Register(has); err != nil {
			return fmt.Errorf("register the metric of the right to %s: %w", name, err)
		}
	}
	return nil
}

// describe returns the help of a metric in the form of component-base.
func describe(help string) string { return fmt.Sprintf("[%s] %s", stability, help) }

// stateCollector reads the state when it is scraped, so that nothing has to keep gauges right.
type stateCollector struct {
	State
	volumes, bytes, maxBytes, withoutToken *prometheus.Desc
	objects, staleness, maxStaleness       *prometheus.Desc
	cached, maxCached                      *prometheus.Desc
}

func newStateCollector(s State) *stateCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, describe(help), labels, nil)
	}
	return &stateCollector{
		State:        s,
		volumes:      desc("refvol_volumes", "Volumes by condition.", "condition"),
		bytes:        desc("refvol_volume_bytes", "Memory that the file systems of all volumes hold: whole pages, and 1 KiB for each inode."),
		maxBytes:     desc("refvol_volume_bytes_limit", "Memory that the files and inodes of all volumes may take: --max-total-size."),
		withoutToken: desc("refvol_volumes_without_token", "Volumes whose pod's service account has no usable token; only with --identity=pod."),
		cached:       desc("refvol_cached_bytes", "Memory that the objects of all volumes take: equal ones count once."),
		maxCached:    desc("refvol_cached_bytes_limit", "Memory that they may take for a new volume to be accepted: --max-cached-size."),
		objects:      desc("refvol_objects", "Referenced objects by kind and by what is known of them.", "kind", "state"),
		staleness: desc("refvol_object_staleness_seconds",
			"Objects by the time since an event, a bookmark, a list or a get last proved their state current, 0 while their watches or requests don't fail. A histogram of this moment: its counts also fall."),
		maxStaleness: desc("refvol_object_staleness_max_seconds",
			"The longest time since the state of an object was last proved current whose watches or requests fail since then, 0 if there is none."),
	}
}

// Describe sends the descriptions.
func (c *stateCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.volumes, c.bytes, c.maxBytes, c.withoutToken, c.cached, c.maxCached, c.objects, c.staleness, c.maxStaleness} {
		to <- d
	}
}

// Collect sends the state of this moment.
func (c *stateCollector) Collect(to chan<- prometheus.Metric) {
	c.collectVolumes(to)
	c.collectObjects(to)
}

func (c *stateCollector) collectVolumes(to chan<- prometheus.Metric) {
	counts := map[publisher.Condition]int{}
	var bytes int64
	withoutToken := 0
	for v := range c.Volumes {
		counts[v.Condition]++
		bytes += v.Bytes
		if v.WithoutToken {
			withoutToken++
		}
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
	ages := staleness{counts: make([]uint64, len(stalenessBounds()))}
	for o := range c.Objects {
		counts[group{o.Ref.Kind, o.State}]++
		if o.Watched {
			ages.add(age(o))
		}
	}
	for _, kind := range volume.Kinds() {
		for _, state := range manager.ObjectStates() {
			to <- gauge(c.objects, float64(counts[group{kind, state}]), string(kind), string(state))
		}
	}
	to <- gauge(c.cached, float64(c.CachedBytes()))
	to <- gauge(c.maxCached, float64(c.MaxCachedBytes))
	to <- prometheus.MustNewConstHistogram(c.staleness, ages.count, ages.sum, ages.buckets())
	to <- gauge(c.maxStaleness, ages.max)
}

// age returns the seconds since an object was last proven current that is stale, else 0. One that never was
// proven counts from its first reference.
func age(o manager.ObjectStatus) float64 {
	if !o.Stale {
		return 0
	}
	proven := o.LastConfirmed
	if proven.IsZero() {
		proven = o.Since
	}
	return time.Since(proven).Seconds()
}

func gauge(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

// staleness collects the ages of objects into a histogram.
type staleness struct {
	counts   []uint64
	count    uint64
	sum, max float64
}

// stalenessBounds returns the upper bounds of the buckets, in seconds. Behind an API server without bookmarks a
// watch that can't be opened again may have been silent for an hour.
func stalenessBounds() []float64 { return []float64{30, 60, 90, 120, 300, 600, 1200, 3600, 14400} }

func (s *staleness) add(age float64) {
	s.count++
	s.sum += age
	s.max = max(s.max, age)
	if i, _ := slices.BinarySearch(stalenessBounds(), age); i < len(s.counts) {
		s.counts[i]++
	}
}

// buckets returns how many ages are not above each bound.
func (s *staleness) buckets() map[float64]uint64 {
	cumulative := map[float64]uint64{}
	var sum uint64
	for i, bound := range stalenessBounds() {
		sum += s.counts[i]
		cumulative[bound] = sum
	}
	return cumulative
}
