package volume

// The limits of what the volumes of one pod may name together. Without them, the limits of one volume multiply: 128 volumes of 256 objects
// are 32,768 watches, and a directory of 4 KiB in front of each of 8,192 items is 32 MiB of paths. A pod's spec has at most 1.5 MiB, so what
// it names itself, each native volume shown once, stays below these limits.
const (
	// MaxPodVolumes limits the volumes of the driver in one pod.
	MaxPodVolumes = 128
	// MaxPodObjects limits the objects, counted once for each volume that names them.
	MaxPodObjects = 1024
	// MaxPodItems limits the Items of Names.
	MaxPodItems = 16384
	// MaxPodNameBytes limits the Bytes and Added of Names together. Directories that don't double the names are allowed in any case.
	MaxPodNameBytes = 4 << 20
)

// PodLimit is a limit of what the volumes of one pod may name together.
type PodLimit struct {
	// What is counted, and Fix says how to have less of it.
	What, Fix string
	Count     func(Names) int64
	Most      int64
}

// PodLimits returns the limits of a pod whose volumes name all together. files is how many files one volume may have.
func PodLimits(all Names, files int64) []PodLimit {
	return []PodLimit{{
		"ConfigMaps and Secrets", "each counts once for each volume that names it: show objects in fewer volumes",
		func(n Names) int64 { return int64(n.Objects) }, MaxPodObjects,
	}, {
		"sources, items, variables and directories", "leave out items, or show the object in fewer volumes",
		func(n Names) int64 { return int64(n.Items) }, max(MaxPodItems, files),
	}, {
		// What the pod's own text says is kept once, however many volumes show it. Only what is put in front of it multiplies.
		"bytes of names and paths", "the path of a source counts for each of its files: use a shorter one",
		func(n Names) int64 { return n.Bytes + n.Added }, max(MaxPodNameBytes, 2*all.Bytes),
	}}
}

// Names counts what volumes name.
type Names struct {
	// Objects are the ConfigMaps and Secrets. A volume counts each of them once.
	Objects int
	// Items are the sources, and what they list: items, variables, parts of joined files. Directories count too.
	Items int
	// Bytes are those of the names of objects, keys and variables, of the variables' values, and of the paths of files and directories.
	Bytes int64
	// Added are the bytes of the directories that sources put in front of the paths of their files, counted for each file.
	Added int64
}

// Plus returns the sum.
func (n Names) Plus(other Names) Names {
	return Names{n.Objects + other.Objects, n.Items + other.Items, n.Bytes + other.Bytes, n.Added + other.Added}
}

// Minus returns the difference.
func (n Names) Minus(other Names) Names {
	return Names{n.Objects - other.Objects, n.Items - other.Items, n.Bytes - other.Bytes, n.Added - other.Added}
}

// Names counts what the spec names. For podEnv and volume sources it counts only what is resolved.
func (s *Spec) Names() Names {
	count := NewCount()
	for i := range s.Sources {
		count.Add(&s.Sources[i])
	}
	count.AddDirectories(s.Directories)
	return count.Names
}

// Count adds up the names of sources. Objects that several sources name count once.
type Count struct {
	Names
	seen map[Ref]struct{}
}

// NewCount returns a Count of nothing.
func NewCount() *Count { return &Count{seen: map[Ref]struct{}{}} }

// Add counts a source as it is in a Spec: the paths of its items include the source's directory.
func (c *Count) Add(source *Source) {
	c.Items++
	c.Bytes += int64(len(source.Path) + len(source.Below.Path))
	switch p := source.Projection; {
	case p != nil:
		c.object(p.Ref)
		c.Items += len(p.Items)
		for i := range p.Items {
			c.Bytes += int64(len(p.Items[i].Key) + len(p.Items[i].Path))
		}
		added := c.below(source.Below.Path, len(p.Items))
		c.Bytes -= added
		c.Added += added
	case source.Env != nil:
		c.env(source.Env)
	case source.Expand != nil:
		c.reference(&source.Expand.Text)
		c.env(&source.Expand.Env)
	}
	for i := range source.Join {
		c.reference(&source.Join[i])
	}
}

// AddIn counts a source of items as Add would count source.In(dir), before that makes the paths.
func (c *Count) AddIn(source *Source, dir string) {
	c.Add(source)
	c.Bytes += int64(len(dir))
	c.Added += c.below(dir, len(source.Projection.Items))
}

// below returns the bytes that a directory adds to the paths of n files.
func (*Count) below(dir string, n int) int64 {
	if dir == "" {
		return 0
	}
	return int64(len(dir)+1) * int64(n)
}

// AddDirectories counts directories.
func (c *Count) AddDirectories(all []Directory) {
	for i := range all {
		c.AddDirectory(len(all[i].Path)-all[i].Added, all[i].Added)
	}
}

// AddDirectory counts a directory, to whose path of so many bytes a subPath adds others.
func (c *Count) AddDirectory(bytes, added int) {
	c.Items++
	c.Bytes += int64(bytes)
	c.Added += int64(added)
}

func (c *Count) env(e *Env) {
	c.Items += len(e.From)
	for i := range e.From {
		c.Bytes += int64(len(e.From[i].Prefix))
		c.object(e.From[i].Ref)
	}
	for i := range e.Vars {
		v := &e.Vars[i]
		c.Bytes += int64(len(v.Name) + len(v.Value))
		if v.Key != nil {
			c.reference(v.Key)
		} else {
			c.Items++
		}
	}
}

// reference counts a key of an object as an item.
func (c *Count) reference(r *Reference) {
	c.Items++
	c.Bytes += int64(len(r.Key))
	c.object(r.Ref)
}

func (c *Count) object(ref Ref) {
	if _, found := c.seen[ref]; found {
		return
	}
	c.seen[ref] = struct{}{}
	c.Objects++
	c.Bytes += int64(len(ref.Namespace) + len(ref.Name))
}
