package payload

import "github.com/refvol/refvol/pkg/volume"

// Names counts the files of whole objects, which a spec without items does not name, before Render makes their paths. A key counts for each
// source that shows it.
func Names(spec *volume.Spec, objects Objects) (n volume.Names) {
	type keys struct{ count, bytes int64 }
	known := map[volume.Ref]keys{} // many sources may show one object
	for i := range spec.Sources {
		source := &spec.Sources[i]
		p := source.Projection
		if p == nil || len(p.Items) > 0 || objects[p.Ref] == nil {
			continue
		}
		of, found := known[p.Ref]
		if !found {
			for _, data := range []map[string][]byte{objects[p.Ref].Data, objects[p.Ref].BinaryData} {
				of.count += int64(len(data))
				for key := range data {
					of.bytes += int64(len(key))
				}
			}
			known[p.Ref] = of
		}
		n.Bytes += of.bytes
		if dir := source.Below.Path; dir != "" {
			n.Added += int64(len(dir)+1) * of.count
		}
	}
	return n
}
