import json,subprocess
c=json.load(open('main.contract.json')); d=json.load(open('attention-f16.contract.json'))
old=c['sdpa']['F16']['tiers']
for t,o in zip(d['sdpa']['F16']['tiers'],old):
    t['tile']=o['tile']
    for k in ('kernel','decode_kernel','family','decode_family'):
        if k in o: t[k]=o[k]
d['sdpa']['F16']['beyond']['kernel']=c['sdpa']['F16']['beyond']['kernel']
c['sdpa']['F16']=d['sdpa']['F16']
c['accuracy']['sdpa']['F16']={"n_points":120,"median_pct":5.9,"p95_pct":33.1,"note":"attention of F16 is from a run of its own, held against the shapes of this one"}
c['sources']=[s for s in c['sources'] if not s.startswith('F16: attention')]+["F16 attention: from another run of gac probe on the same day, with 1008 points"]
json.dump(c,open('merged.json','w'))
